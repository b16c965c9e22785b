"""An exported graph equals sentence-transformers, needs no torch, and is refused where it would not be the model."""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import mteb
import numpy as np
import onnx
import pytest
import torch
from _demo import data as demo_data
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from st_matryoshka2d import (
    OnnxEmbedder,
    UsageError,
    align,
    asymmetric,
    benchmark_latency,
    export_onnx,
    fit_queries,
    load,
    truncate,
)
from tests.support import families
from tests.support.adapters import adapted
from tests.support.launch import finished
from tests.support.pipelines import OTHERS, TEXTS, made, normalized, routed, turned
from tests.support.quick import quick

ALL = [*OTHERS, *TEXTS, "the cat " * 40]  # the last is cut
FILES = ["model.onnx", "onnx_embedder.json", "tokenizer.json"]


def same(embedder: OnnxEmbedder, model: SentenceTransformer, atol: float = 1e-4) -> None:
    """Compare one by one and in a list, for each kind of prompt."""
    for name in ("encode", "encode_query", "encode_document"):
        expected = getattr(model, name)(ALL)
        found = getattr(embedder, name)(ALL)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol, err_msg=name)
        np.testing.assert_allclose(getattr(embedder, name)(ALL[0]), expected[0], rtol=0, atol=atol)


def table(model: SentenceTransformer) -> SentenceTransformer:
    with pytest.warns(match="40 documents tell little"):
        return truncate(fit_queries(normalized(model), TEXTS), "0L-24d")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    """A cut with a Dense, prompts, a limit of tokens, and a tokenizer that was saved with a fixed length."""
    cut = truncate(made(("cls", "mean"), 24, True, tmp_path_factory.mktemp("model")), "1L-16d")
    cut.prompts = {"query": "the cat ", "document": "a dog ", "other": "red "}
    cut.default_prompt_name, cut.max_seq_length = "other", 20
    cut.tokenizer.backend_tokenizer.enable_padding(length=40)
    cut.model_card_data.base_model = "org/whole"
    return cut


@pytest.fixture(scope="module")
def folder(model: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    exported: Path = tmp_path_factory.mktemp("exported") / "new" / "folder"
    before = copy.deepcopy(model.state_dict())
    assert export_onnx(model.train(), exported).dim == 16
    assert model.training
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    model.eval()
    return exported


def test_equals_sentence_transformers(model: SentenceTransformer, folder: Path) -> None:
    embedder = OnnxEmbedder.load(folder, num_threads=1)
    same(embedder, model)
    assert not np.allclose(embedder.encode("new"), embedder.encode_query("new"))
    few = embedder.encode_query(ALL, truncate_dim=5)
    np.testing.assert_allclose(few, model.encode_query(ALL, truncate_dim=5), rtol=0, atol=1e-4)
    assert np.array_equal(embedder.encode(text for text in ALL), embedder.encode(ALL))
    assert embedder.encode([]).shape == (0, 16)
    assert str(embedder) == f"OnnxEmbedder of {str(folder)!r}: 16 dimensions"


def test_what_a_folder_has(folder: Path) -> None:
    """For readers in other languages: three files, a tokenizer that pads to the longest text, and no folders of ours."""
    assert sorted(path.name for path in folder.iterdir()) == FILES
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert tokenizer["padding"]["strategy"] == "BatchLongest"
    assert tokenizer["truncation"]["max_length"] == 20
    about = json.loads((folder / "onnx_embedder.json").read_text(encoding="utf-8"))
    prompts = {"": "red ", "query": "the cat ", "document": "a dog "}
    read = {"dim": 16, "prompts": prompts, "similarity": "cosine"}
    assert read.items() <= about.items()
    assert (about["int8"], about["base_model"], about["matryoshka_cut"]["size"]) == (False, "org/whole", "1L-16d")
    content = (folder / "model.onnx").read_bytes()
    assert b".py" not in content
    graph = onnx.load_from_string(content).graph
    shapes = {put.name: [dim.dim_value for dim in put.type.tensor_type.shape.dim] for put in [*graph.input, *graph.output]}
    assert shapes == {"input_ids": [0, 0], "attention_mask": [0, 0], "sentence_embedding": [0, 16]}  # 0: any number


@pytest.mark.parametrize("int8", quick([False, True], True))
def test_a_table(int8: bool, tiny: SentenceTransformer, tmp_path: Path) -> None:
    tokens = table(tiny)
    embedder = export_onnx(tokens, tmp_path, int8=int8)
    same(embedder, tokens, 0.05 if int8 else 1e-5)
    assert not embedder.encode(["", ""]).any(), "as the table embeds texts without tokens"


POOLINGS: list[Any] = [
    "cls",
    "mean",
    "max",
    "mean_sqrt_len_tokens",
    "weightedmean",
    "lasttoken",
    ("cls", "mean", "lasttoken"),
]
HEADS: list[tuple[int | None, bool]] = [(None, True), (40, False), (24, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "head"), list(zip(POOLINGS, HEADS * 3, strict=False)))
def test_poolings_and_heads(pooling: Any, head: tuple[int | None, bool], tmp_path: Path) -> None:
    whole = made(pooling, *head, tmp_path)
    same(export_onnx(whole, tmp_path / "onnx"), whole)


@pytest.mark.slow
@pytest.mark.parametrize("family", families.CONFIGS)
def test_families(family: str, tmp_path: Path) -> None:
    cut = truncate(families.pipeline(families.CONFIGS[family](), tmp_path / "weights"), num_layers=3, layers="first")
    same(export_onnx(cut, tmp_path / "onnx"), cut)


def one_side(tiny: SentenceTransformer, folder: Path) -> SentenceTransformer:
    asymmetric(align(normalized(tiny), TEXTS), query="1L-8d").save_pretrained(str(folder / "both"))
    return load(folder / "both", route="query", device="cpu")


KINDS: dict[str, Callable[[SentenceTransformer, Path], SentenceTransformer]] = {
    "aligned, whole": lambda tiny, _: turned(align(normalized(tiny), TEXTS)),
    "aligned, cut": lambda tiny, _: truncate(turned(align(normalized(tiny), TEXTS)), "2L-8d"),
    "one side": one_side,
    "adapter": lambda tiny, _: adapted(tiny),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_models_of_the_package(kind: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    given = KINDS[kind](tiny, tmp_path)
    same(export_onnx(given, tmp_path / "onnx"), given)


@pytest.mark.slow
def test_8_bits(minilm: SentenceTransformer, tmp_path: Path) -> None:
    """A quarter of the bytes, and nearly the same embeddings."""
    embedder = export_onnx(minilm, tmp_path, int8=True)
    texts = [row for column in ("sentence1", "sentence2") for row in demo_data.scored_pairs(100)[column]]
    cosines = (embedder.encode(texts) * minilm.encode(texts)).sum(1)
    assert cosines.mean() > 0.98
    times = benchmark_latency(minilm, [6], batch_size=1, rounds=1, int8=True)
    assert (tmp_path / "model.onnx").stat().st_size / 1e6 == pytest.approx(times["megabytes"].item(), abs=0.5)


@pytest.mark.filterwarnings("ignore:Task name other", "ignore:Some prompts are not")
def test_mteb_takes_it(model: SentenceTransformer, folder: Path) -> None:
    settings: dict[str, Any] = {"cache": None, "co2_tracker": False, "show_progress_bar": False}
    for task in (demo_data.demo_task(40), demo_data.demo_search(20)):
        found, expected = (
            mteb.evaluate(one, task, **settings).task_results[0] for one in (OnnxEmbedder.load(folder), model)
        )
        assert found.get_score() == pytest.approx(expected.get_score(), abs=1e-4)


def test_mteb_tells_files_of_one_name_apart(folder: Path, tmp_path: Path) -> None:
    other = Path(copytree(folder, tmp_path / "folder"))
    with (other / "model.onnx").open("ab") as graph:
        graph.write(onnx.ModelProto(producer_version="other").SerializeToString())
    one, same, apart = (OnnxEmbedder.load(each).mteb_model_meta for each in (folder, folder, other))
    assert one.name == apart.name == "onnx/folder"
    assert one.revision == same.revision != apart.revision


@pytest.mark.slow
def test_needs_no_torch(model: SentenceTransformer, folder: Path, tmp_path: Path) -> None:
    """In a process that cannot import it, nor any library of models."""
    (tmp_path / "read.py").write_text(
        """
import sys
for name in ("torch", "transformers", "sentence_transformers", "huggingface_hub", "safetensors", "scipy", "onnx"):
    sys.modules[name] = None
from st_matryoshka2d import OnnxEmbedder
print(*OnnxEmbedder.load(sys.argv[1]).encode_query("the old house"))
"""
    )
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    printed = finished(sys.executable, tmp_path / "read.py", folder, PYTHONPATH=path)
    np.testing.assert_allclose(np.array(printed.split(), float), model.encode_query("the old house"), rtol=0, atol=1e-4)


class Other(torch.nn.Module):
    """Doubles embeddings in a graph alone."""

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        features["sentence_embedding"] = features["sentence_embedding"] * (2 if torch.compiler.is_exporting() else 1)
        return features


class DependsOnData(torch.nn.Module):
    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        if features["sentence_embedding"].sum() > 0:
            features["sentence_embedding"] = -features["sentence_embedding"]
        return features


def with_module(tiny: SentenceTransformer, module: torch.nn.Module) -> SentenceTransformer:
    return SentenceTransformer(modules=[*table(tiny).children(), module], device="cpu")


def leaving_out_prompts(tiny: SentenceTransformer) -> SentenceTransformer:
    made = SentenceTransformer(modules=[tiny[0], Pooling(32, pooling_mode="mean", include_prompt=False)], device="cpu")
    made.prompts = {"query": "the cat "}
    return made


def without_padding(tiny: SentenceTransformer) -> SentenceTransformer:
    tiny.tokenizer.pad_token = None
    return tiny


REFUSED: dict[str, tuple[Callable[[SentenceTransformer], Any], str]] = {
    "no model": (lambda _: "small", r"Expected a SentenceTransformer, got str"),
    "router": (lambda tiny: routed(tiny, shared=False), r'load\(folder, route="query"\)'),
    "half": (lambda tiny: tiny.half(), r"are float16; float32 was expected.*copy\.deepcopy\(model\)\.float\(\)"),
    "prompts": (leaving_out_prompts, r"leaves out the tokens of the prompt \(include_prompt=False\)"),
    "padding": (without_padding, r"no padding token"),
    "another graph": (
        lambda tiny: with_module(tiny, Other()),
        r"differs by [\d.e+]+ from that of `encode`; 0\.0001 was expected",
    ),
    "no graph": (lambda tiny: with_module(tiny, DependsOnData()), r"torch cannot export this model to ONNX"),
}


@pytest.mark.parametrize("why", quick(REFUSED, *(REFUSED.keys() - {"no graph"})))
def test_refuses_models(why: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    change, told = REFUSED[why]
    with pytest.raises(UsageError, match=told):
        export_onnx(change(tiny), tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_refuses_values(folder: Path, tmp_path: Path) -> None:
    embedder = OnnxEmbedder.load(folder)
    with pytest.raises(UsageError, match="truncate_dim=17: the model has 16 dimensions"):
        embedder.encode("a", truncate_dim=17)
    with pytest.raises(TypeError, match="unexpected keywords: normalize_embeddings"):
        embedder.encode("a", normalize_embeddings=True)
    with pytest.raises(TypeError, match=r"texts\[1\] is None"):
        embedder.encode_query(["a", None])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="num_threads must be"):
        OnnxEmbedder.load(folder, num_threads=0)
    for name in FILES:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path} is no exported model: it has no tokenizer.json. Export")):
        OnnxEmbedder.load(tmp_path)
