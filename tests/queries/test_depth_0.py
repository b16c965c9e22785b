"""Depth 0 wherever a size goes: equal to the table alone, and refused in words where it has no use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from st_matryoshka2d import (
    Size,
    SizesEncoder,
    TruncatedTransformer,
    align,
    benchmark_latency,
    encode_sizes,
    encode_to_parquet,
    evaluate,
    load,
    sizes_ladder,
    sts_task,
    truncate,
)
from st_matryoshka2d.losses import MultiSizeLoss, RelationalDistillLoss, StarbucksLoss
from st_matryoshka2d.model.token_table import token_table
from tests.support.command_line import PAIRS
from tests.support.pipelines import OTHERS, TEXTS, equal, normalized
from tests.support.training import train

EMPTY = [*OTHERS, ""]
SIZES = ["0L-8d", "0L-32d", "2L-8d", "4L-32d"]
pytestmark = pytest.mark.filterwarnings("ignore:Nothing says that this model")


def by_hand(model: SentenceTransformer, texts: list[str], dim: int = 32) -> Any:
    """Return the mean of the rows of a text's words, of unit length."""
    table: Any = token_table(model)
    rows = table.embedding.weight.detach().numpy()
    found = []
    for text in texts:
        ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        mean = rows[ids].mean(0) if ids else np.zeros(rows.shape[1])
        found.append(mean / max(np.linalg.norm(mean), 1e-12))
    return np.array(found)[:, :dim]


def test_truncate_makes_a_plain_model(fitted: SentenceTransformer, tmp_path: Path) -> None:
    for asked in ({"num_layers": 0}, {"size": Size(0, 32)}, {"size": "0L-32d"}):
        cut = truncate(fitted, **asked)
        assert [type(module) for module in cut] == [StaticEmbedding, Normalize]
        np.testing.assert_allclose(cut.encode(EMPTY), by_hand(fitted, EMPTY), atol=1e-6)
    cut = truncate(fitted, num_layers=0, dim=8)
    np.testing.assert_allclose(cut.encode(EMPTY), by_hand(fitted, EMPTY, 8), atol=1e-6)
    cut.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    assert np.array_equal(again.encode(EMPTY), cut.encode(EMPTY))
    assert again.truncate_dim == 8
    assert all("sentence_transformers" in entry["type"] for entry in json.loads((tmp_path / "modules.json").read_text()))
    names = {truncate(fitted, size).model_card_data.base_model_revision for size in (Size(0, 8), Size(0, 32), Size(2, 32))}
    assert len(names) == 3
    assert str(cut.model_card_data.model_name).endswith("-0L-8d")


def test_memory_is_shared_with_the_cut(fitted: SentenceTransformer) -> None:
    cut: Any = truncate(fitted, num_layers=0)
    before = cut.encode(OTHERS)
    with torch.no_grad():
        cut[0].embedding.weight[7:20].add_(1.0)
    assert not np.allclose(cut.encode(OTHERS), before)
    assert np.array_equal(truncate(fitted, num_layers=0).encode(OTHERS), cut.encode(OTHERS))


@pytest.mark.parametrize("sizes", [SIZES, ["0L-8d"], ["0L-32d", "1L-32d"]])
def test_encode_sizes(sizes: list[str], fitted: SentenceTransformer) -> None:
    fitted.prompts = {"query": "a red house ", "document": ""}
    for kwargs in ({}, {"prompt_name": "query"}):
        found = encode_sizes(fitted, EMPTY, sizes, batch_size=2, **kwargs)
        for size in sizes:
            expected = truncate(fitted, size).encode(EMPTY, **kwargs)
            np.testing.assert_allclose(found[Size.parse(size)], expected, atol=1e-6)


def test_no_network_runs_for_depth_0_alone(fitted: SentenceTransformer) -> None:
    with torch.no_grad():
        for weight in fitted[0].parameters():
            weight.fill_(torch.nan)
    assert np.isfinite(encode_sizes(fitted, OTHERS, ["0L-32d", "0L-8d"])[Size(0, 32)]).all()


@pytest.mark.slow
def test_encode_sizes_in_other_processes(fitted: SentenceTransformer) -> None:
    found = encode_sizes(fitted, TEXTS, SIZES, device=["cpu", "cpu"])
    expected = encode_sizes(fitted, TEXTS, SIZES)
    for size in expected:
        np.testing.assert_allclose(found[size], expected[size], atol=1e-6)


def test_encoders_and_files(fitted: SentenceTransformer, tmp_path: Path) -> None:
    expected = encode_sizes(fitted, OTHERS, SIZES)
    found = SizesEncoder(fitted, SIZES).encode(OTHERS)
    for size, embeddings in expected.items():
        np.testing.assert_allclose(found[str(size)], embeddings, atol=1e-6)
    fitted.save_pretrained(str(tmp_path / "model"))
    assert np.array_equal(SizesEncoder(tmp_path / "model", ["0L-8d"]).encode(OTHERS)["0L-8d"], found["0L-8d"])
    files = encode_to_parquet(fitted, OTHERS, tmp_path / "rows", ["0L-8d", "4L-32d"], show_progress_bar=False)
    assert len(files) == 1


def test_grids_have_a_row_for_it(fitted: SentenceTransformer) -> None:
    task = sts_task(PAIRS)
    grid = evaluate(fitted, task, dims=[8, 32], show_progress_bar=False)
    assert {size.num_layers for size in grid.sizes} == {0, 1, 2, 3, 4}
    alone = evaluate(fitted, task, sizes=["0L-8d"], show_progress_bar=False)
    assert alone.score("0L-8d") == pytest.approx(grid.score("0L-8d"))
    left, right = (by_hand(fitted, list(PAIRS[name]), 8) for name in ("sentence1", "sentence2"))
    cosines = (left * right).sum(1) / (np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1))
    from scipy.stats import spearmanr

    assert grid.score("0L-8d") == pytest.approx(spearmanr(cosines, PAIRS["score"])[0], abs=1e-4)
    across = evaluate(fitted, task, sizes=["0L-32d"], documents="4L-32d", show_progress_bar=False)
    assert across.document_sizes == ["4L-32d"]
    assert str(grid)
    assert grid.plot() is not None
    assert sizes_ladder(fitted)[0].num_layers == 1


def test_latency(fitted: SentenceTransformer) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # times of a tiny model overlap
        times = benchmark_latency(fitted, batch_size=2, rounds=1, show_progress_bar=False)
    assert list(times["num_layers"]) == [0, 1, 2, 3, 4]
    assert np.isnan(times["theory"][0])
    assert times["parameters"][0] == token_table(fitted).embedding.weight.numel()  # type: ignore[union-attr]


def plain(tiny: SentenceTransformer) -> SentenceTransformer:
    return normalized(tiny)


USES: dict[str, Callable[[SentenceTransformer], object]] = {
    "truncate": lambda model: truncate(model, num_layers=0),
    "encode_sizes": lambda model: encode_sizes(model, OTHERS, ["0L-8d"]),
    "encoder": lambda model: SizesEncoder(model, ["0L-8d"]),
    "evaluate": lambda model: evaluate(model, sts_task(PAIRS), num_layers=0),
    "latency": lambda model: benchmark_latency(model, [0]),
}
NO_USE: dict[str, Callable[[SentenceTransformer], object]] = {
    "loss": lambda model: MultiSizeLoss(model, MultipleNegativesRankingLoss(model), ["0L-8d", "4L-32d"]),
    "ladder loss": lambda model: StarbucksLoss(model, MultipleNegativesRankingLoss(model), ["0L-8d", "4L-32d"]),
    "distillation": lambda model: RelationalDistillLoss(model, sizes=["0L-8d", "4L-32d"]),
    "align": lambda model: align(model, TEXTS, ["0L-8d"]),
    "elastic": lambda model: elastic(model).encode(OTHERS, num_layers=0),
    "elastic, default": lambda model: TruncatedTransformer.from_transformer(model[0], 0),
}


def elastic(model: SentenceTransformer) -> SentenceTransformer:
    model[0] = TruncatedTransformer.from_transformer(model[0])
    return model


@pytest.mark.parametrize("use", USES)
def test_refused_without_a_table(use: str, tiny: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match=r"`fit_queries\(model, documents\)` gives"):
        USES[use](tiny)


@pytest.mark.parametrize("use", NO_USE)
def test_refused_where_it_has_no_use(use: str, fitted: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match=r"0 layers mean a token table.*neither trained nor aligned"):
        NO_USE[use](fitted)


def test_other_depths_are_as_without_a_table(fitted: SentenceTransformer) -> None:
    model = SentenceTransformer(modules=[*list(fitted.children())[:2], Normalize()], device="cpu")
    del model.config.matryoshka_readouts
    for size in ("2L-8d", "4L-16d"):
        np.testing.assert_allclose(truncate(fitted, size).encode(OTHERS), truncate(model, size).encode(OTHERS), atol=1e-6)


def test_folder_is_loaded_and_read(fitted: SentenceTransformer, tmp_path: Path) -> None:
    fitted.prompts = {"query": "a red house ", "document": ""}
    fitted.similarity_fn_name = "dot"
    fitted.save_pretrained(str(tmp_path))
    whole = load(tmp_path, device="cpu")
    assert equal(whole, fitted)
    assert np.array_equal(SentenceTransformer(str(tmp_path), device="cpu").encode(OTHERS), fitted.encode(OTHERS))
    for size in ("2L-8d", "4L-8d"):
        np.testing.assert_allclose(load(tmp_path, size).encode(OTHERS), truncate(fitted, size).encode(OTHERS), atol=1e-6)
    (tmp_path / "model.safetensors").write_bytes(b"not read")
    for size in ("0L-8d", "0L-32d"):
        cut, expected = load(tmp_path, size, device="cpu"), truncate(fitted, size)
        assert np.array_equal(cut.encode(EMPTY), expected.encode(EMPTY))
        assert cut.prompts == expected.prompts == {"query": "", "document": ""}
        assert cut.similarity_fn_name == "dot"
    with pytest.raises(ValueError, match="dim=99"):
        load(tmp_path, num_layers=0, dim=99)


def test_refuses_to_load_what_is_not_there(tiny: SentenceTransformer, fitted: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path / "plain"))
    with pytest.raises(ValueError, match=r"has no token table.*`fit_queries\(model, documents\)`"):
        load(tmp_path / "plain", num_layers=0)
    fitted.save_pretrained(str(tmp_path / "fitted"))
    with pytest.raises(ValueError, match=r"readouts for \[0\] layers, but they were not loaded"):
        truncate(SentenceTransformer(str(tmp_path / "fitted"), device="cpu"), num_layers=0)
    (table,) = (tmp_path / "fitted").rglob("readout-0L.safetensors")
    table.unlink()
    for num_layers in (None, 0):
        with pytest.raises(ValueError, match=r"readout-0L.safetensors is missing"):
            load(tmp_path / "fitted", num_layers=num_layers)


def rewritten(file: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    with safe_open(file, "pt") as opened:
        facts = opened.metadata()
    save_file(change(load_file(file)), file, facts)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (lambda file: file.write_bytes(file.read_bytes()[:100]), "cannot be read"),
    "rows": (
        lambda file: rewritten(file, lambda held: {**held, "embedding.weight": held["embedding.weight"][:-1].clone()}),
        "is 26 x 32, but must be 27 x 32",
    ),
    "narrow": (
        lambda file: rewritten(file, lambda held: {**held, "embedding.weight": held["embedding.weight"][:, :8].clone()}),
        "is 27 x 8, but must be 27 x 32",
    ),
    "tokenizer": (
        lambda file: rewritten(file, lambda held: {**held, "tokenizer": held["tokenizer"][:50].clone()}),
        "has no usable tokenizer",
    ),
    "no tokenizer": (
        lambda file: rewritten(file, lambda held: {"embedding.weight": held["embedding.weight"]}),
        "cannot be read",
    ),
    "not UTF-8": (
        lambda file: rewritten(file, lambda held: {**held, "tokenizer": held["tokenizer"] | 0x80}),
        "has no usable tokenizer",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("num_layers", [None, 0])
def test_refuses_broken_tables(how: str, num_layers: int | None, fitted: SentenceTransformer, tmp_path: Path) -> None:
    fitted.save_pretrained(str(tmp_path))
    (table,) = tmp_path.rglob("readout-0L.safetensors")
    change, told = BROKEN[how]
    change(table)
    with pytest.raises(ValueError, match=told):
        load(tmp_path, num_layers=num_layers)


@pytest.mark.filterwarnings("ignore:.*too few to align", "ignore:This model was not aligned for")
def test_table_of_another_model_is_refused(fitted: SentenceTransformer, tmp_path: Path) -> None:
    from tests.support.pipelines import turned

    folders = {name: tmp_path / name for name in ("one", "other")}
    fitted.save_pretrained(str(folders["one"]))
    turned(align(fitted, TEXTS, steps=0)).save_pretrained(str(folders["other"]))
    one, other = (next(folder.rglob("readout-0L.safetensors")) for folder in folders.values())
    shutil.copy(one, other)
    for num_layers in (None, 0):
        with pytest.raises(ValueError, match="belongs to other weights"):
            load(folders["other"], num_layers=num_layers)


@pytest.mark.slow
def test_trainer_keeps_the_table(fitted: SentenceTransformer, tmp_path: Path) -> None:
    before = truncate(fitted, num_layers=0).encode(OTHERS)
    with pytest.warns(match=r"does not train the token table.*Call `fit_queries` again"):
        loss = MultiSizeLoss(fitted, MultipleNegativesRankingLoss(fitted), ["2L-8d", "4L-32d"])
    train(fitted, loss, tmp_path, max_steps=1)
    assert np.array_equal(truncate(fitted, num_layers=0).encode(OTHERS), before)
    fitted.save_pretrained(str(tmp_path / "saved"))
    assert np.array_equal(load(tmp_path / "saved", num_layers=0).encode(OTHERS), before)


def test_folder_of_a_table_is_its_depth_0(fitted: SentenceTransformer, tmp_path: Path) -> None:
    truncate(fitted, num_layers=0).save_pretrained(str(tmp_path))
    expected = by_hand(fitted, OTHERS)
    for asked, dim in (({"num_layers": 0}, 32), ({"size": "0L-8d"}, 8), ({"dim": 8}, 8), ({}, 32)):
        loaded = load(tmp_path, device="cpu", **asked)
        assert loaded.get_embedding_dimension() == dim
        np.testing.assert_allclose(loaded.encode(OTHERS), expected[:, :dim], atol=1e-6)
        found = encode_sizes(loaded, OTHERS, ["0L-8d"])[Size(0, 8)]
        np.testing.assert_allclose(found, expected[:, :8], atol=1e-6)
    np.testing.assert_allclose(SizesEncoder(tmp_path, ["0L-8d"]).encode(OTHERS)["0L-8d"], expected[:, :8], atol=1e-6)
    np.testing.assert_allclose(truncate(truncate(fitted, num_layers=0), dim=8).encode(OTHERS), expected[:, :8], atol=1e-6)
    with pytest.raises(ValueError, match="num_layers=3: the model has 0 layers"):
        load(tmp_path, num_layers=3)
    with pytest.raises(ValueError, match="dim=99: the model has 32 dimensions"):
        load(tmp_path, num_layers=0, dim=99)
    with pytest.raises(ValueError, match="2L-8d has 2 layers, but the model has 0"):
        SizesEncoder(tmp_path, ["2L-8d"])
