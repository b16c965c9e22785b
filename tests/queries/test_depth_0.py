"""Depth 0 wherever a size goes: equal to the table alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from st_matryoshka2d import (
    Size,
    SizesEncoder,
    benchmark_latency,
    encode_sizes,
    encode_to_parquet,
    evaluate,
    load,
    sizes_ladder,
    sts_task,
    truncate,
)
from st_matryoshka2d.losses import MultiSizeLoss
from st_matryoshka2d.model.readout import token_table
from tests.support.command_line import PAIRS
from tests.support.pipelines import OTHERS, equal
from tests.support.training import train

pytestmark = pytest.mark.filterwarnings("ignore:Nothing says that this model")

EMPTY = [*OTHERS, ""]


SIZES = ["0L-8d", "0L-32d", "2L-8d", "4L-32d"]


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
        assert list(map(isinstance, cut, (StaticEmbedding, Normalize))) == [True, True]
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
    with pytest.raises(ValueError, match="num_layers=3: a StaticEmbedding has no layers"):
        load(tmp_path, num_layers=3)
    with pytest.raises(ValueError, match="dim=99: the model has 32 dimensions"):
        load(tmp_path, num_layers=0, dim=99)
    with pytest.raises(ValueError, match="2L-8d has 2 layers, but the model has 0"):
        SizesEncoder(tmp_path, ["2L-8d"])
