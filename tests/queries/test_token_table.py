"""A saved table without torch: equal to sentence-transformers on all texts, light, and strict about folders."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

from st_matryoshka2d import TokenTable, UsageError, asymmetric, load, truncate
from st_matryoshka2d.model.readout import require_table
from tests import ROOT
from tests.support.pipelines import OTHERS
from tests.support.tokenizers import KINDS, texts

TEXTS = [
    *texts(60, seed=3),
    *("", " ", "\n\t", "\u200b", "\ufffd\x00", "a\u0301e\u0301", "HELLO Wörld", "👩‍👩‍👧‍👦🏳️‍🌈", "مرحبا", "새해 복"),
    *("[CLS] a [SEP] [MASK] [UNK] [PAD] </s>", "New York, newer york, NewYork", "x" * 3000, "ab?" * 4000),
]


def tokenizer(kind: str) -> Tokenizer:
    """Return a tokenizer with added tokens, truncation and padding."""
    made: Any = KINDS[kind]()
    made.add_tokens(["New York", "ab?"])
    plain: Tokenizer = made.backend_tokenizer
    plain.enable_truncation(2000)
    plain.enable_padding()
    return plain


def model_of(kind: str = "WordPiece", *more: Any, dim: int = 24) -> SentenceTransformer:
    plain = tokenizer(kind)
    rows = np.random.default_rng(0).normal(size=(plain.get_vocab_size(), dim)).astype(np.float32)
    return SentenceTransformer(modules=[StaticEmbedding(plain, embedding_weights=rows), *more], device="cpu")


def same(table: TokenTable, model: SentenceTransformer, **given: Any) -> None:
    """Compare one by one and in a list."""
    for ours, theirs in ((table.encode, model.encode), (table.encode_query, model.encode_query)):
        embedded: Any = ours(TEXTS, **given)
        assert embedded.dtype == np.float32
        np.testing.assert_allclose(embedded, theirs(TEXTS, **given), rtol=0, atol=1e-6)
        for text, row in zip(TEXTS[-12:], embedded[-12:], strict=True):
            assert np.array_equal(ours(text, **given), row)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_sentence_transformers(kind: str, tmp_path: Path) -> None:
    model_of(kind, Normalize()).save_pretrained(str(tmp_path))
    table, saved = TokenTable.load(tmp_path), SentenceTransformer(str(tmp_path), device="cpu")
    same(table, saved)
    same(table, saved, truncate_dim=7)


def test_what_a_folder_says(tmp_path: Path) -> None:
    """Prompts, fewer dims, rows that are not normalized, no list, and no text at all."""
    model = model_of()
    model.prompts, model.default_prompt_name = {"query": "Query: ", "other": "Other: "}, "other"
    model.truncate_dim = 16
    model.save_pretrained(str(tmp_path))
    table = TokenTable.load(tmp_path)
    same(table, SentenceTransformer(str(tmp_path), device="cpu"))
    assert table.truncate_dim == 16
    assert not np.allclose(table.encode("a"), table.encode_query("a"))
    wider = TokenTable.load(str(tmp_path), truncate_dim=20)
    same(wider, SentenceTransformer(str(tmp_path), truncate_dim=20, device="cpu"))
    assert wider.encode_query("a", truncate_dim=24).shape == (24,)
    assert np.array_equal(table.encode(text for text in TEXTS), table.encode(TEXTS))
    assert table.encode([]).shape == (0, 16)


@pytest.mark.parametrize("size", ["0L-32d", "0L-8d"])
def test_folders_of_the_package(size: str, fitted: SentenceTransformer, tmp_path: Path) -> None:
    cut = truncate(fitted, size)
    cut.save_pretrained(str(tmp_path / "alone"))
    asymmetric(fitted, query=size).save_pretrained(str(tmp_path / "both"))
    for folder in ("alone", "both"):
        same(TokenTable.load(tmp_path / folder), cut)
    whole = SentenceTransformer(str(tmp_path / "both"), device="cpu")
    np.testing.assert_allclose(TokenTable.load(tmp_path / "both").encode(TEXTS), whole.encode_query(TEXTS), atol=1e-6)


@pytest.mark.parametrize("size", ["0L-32d", "0L-8d"])
def test_half_folders_of_the_package(size: str, fitted: SentenceTransformer, tmp_path: Path) -> None:
    """In the same numbers wherever they are read, also of texts without tokens and of unknown words alone."""
    texts = [*OTHERS, "", " ", "\n\t", "qwxzyv", "⁂ qwxzyv"]
    unknown = fitted.tokenizer.unk_token_id
    with torch.no_grad():
        require_table(fitted).embedding.weight[unknown] = 0
    for name, model in {"alone": truncate(fitted, size), "both": asymmetric(fitted, query=size)}.items():
        expected = model.encode_query(texts)
        folder = str(tmp_path / name)
        copy.deepcopy(model).half().save_pretrained(folder)
        table = TokenTable.load(folder)
        assert table.rows.dtype == np.float16
        found = table.encode_query(texts)
        assert not found[len(OTHERS) :].any()
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)
        ways = {"plain": SentenceTransformer(folder, device="cpu"), "load": load(folder, device="cpu")}
        ways["cut"] = truncate(ways["plain"], dim=8).half()
        ways["memory"] = copy.deepcopy(model).half()
        for way, read in ways.items():
            embedded = read.encode_query(texts)
            np.testing.assert_allclose(embedded, found[:, : embedded.shape[1]], rtol=0, atol=1e-6, err_msg=f"{name} {way}")
        ways["load"].save_pretrained(f"{folder} again")
        assert TokenTable.load(f"{folder} again").rows.dtype == np.float16


def test_half_precision_is_computed_in_float32(tmp_path: Path) -> None:
    """In float16, sentence-transformers makes an empty text NaN."""
    model_of("WordPiece", Normalize()).half().save_pretrained(str(tmp_path))
    table = TokenTable.load(tmp_path)
    assert table.rows.dtype == np.float16
    same(table, SentenceTransformer(str(tmp_path), device="cpu").float())


def test_rows_are_mapped(tmp_path: Path) -> None:
    model_of().save_pretrained(str(tmp_path))
    table = TokenTable.load(tmp_path)
    assert str(table).endswith(f"/{tmp_path.name}': {len(table.rows)} tokens x 24 dimensions")
    assert isinstance(table.rows.base, np.memmap)
    assert not table.rows.flags.writeable


def test_refuses_values(tmp_path: Path) -> None:
    model_of().save_pretrained(str(tmp_path))
    table = TokenTable.load(tmp_path)
    for call in (
        lambda: TokenTable.load(tmp_path, truncate_dim=25),
        lambda: table.encode("a", truncate_dim=25),
        lambda: table.encode_query(["a"], truncate_dim=25),
    ):
        with pytest.raises(UsageError, match="truncate_dim=25: the model has 24 dimensions"):
            call()
    for given, told in ((["a", None], "texts\\[1\\] is None"), (None, "texts\\[0\\] is None")):
        with pytest.raises(TypeError, match=told):
            table.encode_query(given)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="half of a surrogate pair"):
        table.encode_query("\ud800")
    assert not hasattr(table, "encode_document")


def rows(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    """Change the tensors of the table."""

    def changed(folder: Path) -> None:
        save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")

    return changed


def text(name: str, content: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def bfloat16(folder: Path) -> None:
    model_of().bfloat16().save_pretrained(str(folder))


def network_for_queries(folder: Path) -> None:
    ways = [[model_of()[0], Dense(24, 24)], [model_of()[0]]]
    SentenceTransformer(modules=[Router.for_query_document(*ways)], device="cpu").save_pretrained(str(folder))  # type: ignore[arg-type]


ROUTER = {"type": "sentence_transformers.models.Router", "path": ""}
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "is not a folder.*truncate\\(fitted, num_layers=0\\)"),
    "no modules": (lambda folder: (folder / "modules.json").unlink(), r"there is no modules\.json"),
    "no rows": (lambda folder: (folder / "model.safetensors").unlink(), r"there is no .*model\.safetensors"),
    "modules are no JSON": (text("modules.json", "{"), "no route of queries.*JSONDecodeError"),
    "modules are no list": (text("modules.json", {"a": 1}), "no route of queries.*TypeError"),
    "no router": (text("modules.json", [ROUTER]), "no route of queries.*router_config"),
    "another class": (text("modules.json", [{"type": "mine.StaticEmbedding", "path": ""}]), r"by mine\.StaticEmbedding"),
    "outside": (text("modules.json", [{"type": "a", "path": "../a"}]), "is not inside the repository"),
    "no module": (text("modules.json", []), "by nothing"),
    "a network": (network_for_queries, "by StaticEmbedding, Dense"),
    "rows with weights": (
        rows(lambda found: {"embeddings": found["embedding.weight"], "weights": found["embedding.weight"][:, 0]}),
        "whose rows have weights",
    ),
    "other names": (rows(lambda found: {"weight": found["embedding.weight"]}), "only weight"),
    "one row": (rows(lambda found: {"embedding.weight": found["embedding.weight"][:1]}), "tokens, but the table.* 1 rows"),
    "bfloat16": (bfloat16, r"are BF16; F32 or F16.*model\.half\(\)"),
    "cut off": (lambda folder: os.truncate(folder / "model.safetensors", 900), "of a file of 900 bytes"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_refuses_folders(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    model_of().save_pretrained(str(folder))
    change, told = BROKEN[case]
    change(folder)
    with pytest.raises(UsageError, match=told):
        TokenTable.load(folder)


def test_a_network_is_no_table(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path))
    with pytest.raises(UsageError, match="by Transformer, Pooling"):
        TokenTable.load(tmp_path)


@pytest.fixture
def without_torch(tmp_path: Path) -> Callable[..., str]:
    """Return what runs Python in an environment of links to NumPy and `tokenizers`, and returns what is printed."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for package in ("numpy", "numpy.libs", "tokenizers"):
        if (installed := Path(np.__file__).parents[1] / package).exists():
            (libraries / package).symlink_to(installed)
    path = {**os.environ, "PYTHONPATH": f"{libraries}{os.pathsep}{ROOT}", "PYTHONIOENCODING": "utf-8"}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-S", *arguments]
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8", cwd=tmp_path, env=path).stdout

    return run


@pytest.mark.slow
def test_needs_no_torch(fitted: SentenceTransformer, without_torch: Callable[..., str], tmp_path: Path) -> None:
    """The same numbers, and the program of the page finds the document."""
    folder = tmp_path / "search"
    asymmetric(fitted, query=0).save_pretrained(str(folder))
    (folder / "texts.json").write_text(json.dumps(TEXTS), encoding="utf-8")
    expected = truncate(fitted, num_layers=0).encode_query(TEXTS)
    code = """
import json, numpy, pathlib
from st_matryoshka2d import TokenTable
texts = json.loads(pathlib.Path("search/texts.json").read_text(encoding="utf-8"))
numpy.save("found.npy", TokenTable.load("search").encode_query(texts))
"""
    without_torch("-c", code)
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, rtol=0, atol=1e-6)

    np.save(folder / "index.npy", expected)
    page = (ROOT / "docs" / "cheap_queries.md").read_text(encoding="utf-8")
    [program] = re.findall(r"```python\n(import json\nimport sys\n.*?)```", page, flags=re.DOTALL)
    (tmp_path / "search.py").write_text(program, encoding="utf-8")
    best = (expected @ expected[0]).argsort()[:-4:-1]
    printed = without_torch("search.py", *TEXTS[0].split())
    assert printed == "".join(f"{TEXTS[place]}\n" for place in best)
