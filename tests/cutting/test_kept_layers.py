"""Depths that keep other layers than the first: the choice, exactness in every family, and what a cut remembers."""

from __future__ import annotations

import copy
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import BertConfig

import st_matryoshka2d
from st_matryoshka2d import DataWarning, GridResult, Size, align, asymmetric, evaluate, load, sts_task, truncate
from st_matryoshka2d.losses import RelationalDistillLoss
from st_matryoshka2d.model.cut_config import Cut
from st_matryoshka2d.model.layers import Layers
from tests.support.declared import declare_layers, declare_training
from tests.support.pipelines import OTHERS, TEXTS
from tests.support.training import train

pytestmark = pytest.mark.filterwarnings("ignore:This model was not aligned for")

FOUR = {1: [1], 2: [1, 4], 3: [1, 3, 4]}  # what "ends" keeps of four layers


@pytest.mark.parametrize(
    ("layers", "num_layers", "expected"),
    [
        ("first", 6, {1: [1], 2: [1, 2], 5: [1, 2, 3, 4, 5]}),
        ("ends", 1, {1: [1]}),
        ("ends", 2, {1: [1]}),
        ("ends", 4, FOUR),
        ("ends", 6, {1: [1], 2: [1, 6], 3: [1, 5, 6], 4: [1, 2, 5, 6], 5: [1, 2, 4, 5, 6]}),
        ({2: [1, 4]}, 4, {1: [1], 2: [1, 4], 3: [1, 2, 3]}),
        ({np.int64(1): (3,)}, 3, {1: [3], 2: [1, 2]}),
    ],
)
def test_chosen_layers(layers: Any, num_layers: int, expected: dict[int, list[int]]) -> None:
    chosen = Layers(num_layers).chosen(layers)
    assert {depth: [layer + 1 for layer in chosen.kept(depth)] for depth in expected} == expected
    assert chosen.kept(num_layers) == list(range(num_layers))


def test_grid_of_chosen_layers(tiny: SentenceTransformer, tmp_path: Path) -> None:
    task = sts_task({"sentence1": TEXTS[:20], "sentence2": TEXTS[20:], "score": [n % 5 / 4 for n in range(20)]}, name="made")
    assert evaluate(tiny, [task], dims=8, layers=[1, 4]).sizes == [Size(2, 8)], "the only depth that a list is for"
    grid = evaluate(tiny, [task], dims=8, layers="ends")
    for depth in (2, 3, 4):
        cut = truncate(tiny, num_layers=depth, dim=8, layers="ends")
        alone = evaluate(cut, [task], num_layers=depth, dims=8)
        assert grid.score(Size(depth, 8)) == pytest.approx(alone.score(Size(depth, 8)), abs=1e-6)
    grid.save(tmp_path / "grid.parquet")
    loaded, plain = GridResult.load(tmp_path / "grid.parquet"), evaluate(tiny, [task], dims=8, layers="first")
    assert (loaded.layers, plain.layers) == ("ends", "first")
    assert "layers='ends'" in str(loaded)
    with pytest.raises(ValueError, match="'ends'"):
        GridResult.merge([loaded, evaluate(tiny, [task], num_layers=1, dims=16, layers="first")])
    unasked = evaluate(tiny, [task], dims=8)
    pd.testing.assert_frame_equal(unasked.frame, grid.frame)
    assert (unasked.layers, str(unasked)) == ("ends", str(grid))
    whole = evaluate(tiny, [task], num_layers=4, dims=16)
    assert whole.layers == "ends", "so that both can be merged"
    assert "layers=" not in str(whole)
    assert set(GridResult.merge([unasked, whole]).sizes) == {*unasked.sizes, *whole.sizes}


def test_layers_that_were_not_trained_are_told(tiny: SentenceTransformer) -> None:
    model = copy.deepcopy(tiny)
    declare_training(model.config, [Size(2, 32), Size(4, 32)], "StarbucksLoss")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        truncate(model, num_layers=2)
        truncate(model, num_layers=2, layers="first")
    with pytest.warns(DataWarning, match="not trained at 2L-32d"):
        truncate(model, num_layers=2, layers="ends")
    for depth, kept in FOUR.items():
        with pytest.warns(DataWarning, match="aligned or trained for fewer layers") as caught:
            truncate(tiny, num_layers=depth)
        told = str(caught[0].message)
        assert (f"It keeps layers {str(kept)[1:-1]};" in told and 'layers="first"' in told) is (depth > 1), told
    with pytest.warns(DataWarning) as caught:
        truncate(tiny, num_layers=2, layers="first")
    assert "It keeps" not in str(caught[0].message)
    with pytest.warns(DataWarning, match="fewer layers") as caught:
        truncate(truncate(tiny, num_layers=3), num_layers=2)
    better = [str(warning.message).rpartition("To improve it, ")[2] for warning in caught]
    assert better == [
        "`heal` this size, or, for embeddings, `align` the model for all depths.",
        "`align` the whole model that this is a cut of, and cut that.",
    ]


@pytest.mark.parametrize(
    ("again", "kept"),
    [({"num_layers": 2}, [1, 4]), ({"layers": [2, 3]}, [2, 4]), ({"num_layers": 2, "layers": "first"}, [1, 2])],
)
def test_a_cut_of_chosen_layers_is_cut_again(
    again: dict[str, Any], kept: list[int], tiny: SentenceTransformer, tmp_path: Path
) -> None:
    cut, expected = (truncate(tiny, layers=layers) for layers in ([1, 2, 4], kept))
    cut.save_pretrained(str(tmp_path))
    for found in (truncate(cut, **again), load(str(tmp_path), device="cpu", **again)):
        assert np.array_equal(found.encode(TEXTS), expected.encode(TEXTS))
        assert found.config.matryoshka_cut == {**expected.config.matryoshka_cut, "layers": kept}


def test_queries_by_a_free_cut_search_the_index_of_all_layers(minilm: SentenceTransformer) -> None:
    texts = [f"{thing} {place}" for thing in ("a cat", "rain", "soup") for place in ("at home", "in town", "at night")]
    index = minilm.encode(texts)
    queries = asymmetric(minilm, truncate(minilm, num_layers=3, layers="ends"))
    best = minilm.similarity(queries.encode_query(texts), index).argmax(dim=1)
    assert best.tolist() == list(range(len(texts)))
    assert np.array_equal(queries.encode_document(texts), index)


def test_config_of_cut() -> None:
    config: Any = BertConfig(num_hidden_layers=4, per_layer=list("abcd"), by_layer={"0": "a", "1": "b", 3: "d"})
    declare_layers(config, FOUR)
    cut = Cut.of(config, 3)
    assert cut.config.per_layer == list("acd")
    assert cut.config.by_layer == {0: "a", 2: "d"}
    assert cut.config.id2label == config.id2label, "which has numbers of labels"
    assert cut.layers.within(3).by_depth == {1: [1], 2: [1, 3]}, "by their places in the cut"
    assert [cut.layers.kept(depth) for depth in (1, 2, 3, 4)] == [[0], [0, 3], [0, 2, 3], [0, 1, 2, 3]]
    assert cut.layers.smallest_depth_with([1, 2, 3]) == 3
    assert Layers(4).chosen({2: [2, 3]}).smallest_depth_with([1, 2]) == 4, "layer 1 is not among 2 and 3"
    declare_layers(config, {})
    assert Layers.of(config) == Layers(4, "first")
    assert Layers.of(config).within(3) == Layers(3, "first")


def test_a_declaration_is_written_where_a_result_is_declared() -> None:
    """A config is no variable: who needs the layers of a depth, or what a model declares, takes the value."""
    package = Path(st_matryoshka2d.__file__).parent
    written = re.compile(r"[dD]eclar.*\.write\(")
    writers = {file.relative_to(package).as_posix() for file in package.rglob("*.py") if written.search(file.read_text())}
    results = {
        "model/pipeline.py",
        "model/cut_config.py",
        "cutting/cut.py",
        "cutting/asymmetric.py",
        "healing/heal.py",
        "vocabulary/with_vocabulary.py",
    }
    trained = {"losses/multi_size.py", "pretraining/smae.py"}
    assert writers == results | trained


@pytest.mark.parametrize("entry", [None, {"2": [1, 4]}])
def test_an_impossible_depth_takes_no_memory(entry: Any) -> None:
    config: Any = BertConfig(num_hidden_layers=4, matryoshka_layers=entry)
    config.num_hidden_layers = 10**12
    assert Cut.of(config, 10**12).config.num_hidden_layers == 10**12


def test_config_records_layers(tiny: SentenceTransformer, tmp_path: Path) -> None:
    aligned = align(tiny, TEXTS, layers="ends")
    assert not hasattr(tiny.config, "matryoshka_layers")
    assert aligned.config.matryoshka_layers == {str(depth): layers for depth, layers in FOUR.items()}
    aligned.save_pretrained(str(tmp_path / "aligned"))
    ways = (partial(truncate, aligned), partial(load, tmp_path / "aligned"))
    for cut in (way(num_layers=3, **told) for way in ways for told in ({}, {"layers": "ends"})):
        assert cut.config.matryoshka_cut["layers"] == [1, 3, 4]
        assert not hasattr(cut.config, "matryoshka_layers")
    with pytest.warns(UserWarning, match="was cut from an aligned one"):
        again = truncate(truncate(aligned, num_layers=3), num_layers=2)
    assert again.config.matryoshka_cut["layers"] == [1, 3], "the first two of the three"
    assert "layers" not in truncate(aligned, dim=8).config.matryoshka_cut


def test_half_precision_in_training_is_that_of_the_pass(tiny: SentenceTransformer) -> None:
    """Blocks that run again must run in the precision of their first run, which Accelerate sets around the model alone."""
    aligned = align(tiny, TEXTS, layers="ends")
    seen: list[torch.dtype] = []
    block = aligned[0].model.encoder.layer[3].intermediate.dense
    block.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    loss = RelationalDistillLoss(aligned, sizes=["2L-8d", "4L-32d"])
    forward = aligned.forward
    aligned.forward = lambda *args, **kwargs: torch.autocast("cpu", torch.bfloat16)(forward)(*args, **kwargs)  # type: ignore[method-assign]
    loss([aligned.preprocess(OTHERS)])
    assert seen.count(torch.bfloat16) == 2, seen


def test_checkpoint_resumes_with_layers(tiny: SentenceTransformer, tmp_path: Path) -> None:
    aligned = align(tiny, TEXTS, layers="ends")
    before = truncate(aligned, num_layers=2).encode(OTHERS)
    loss = RelationalDistillLoss(aligned, loss=MultipleNegativesRankingLoss(aligned))
    saving: dict[str, Any] = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "learning_rate": 1e-2}
    train(aligned, loss, tmp_path / "run", bf16=True, use_cpu=True, **saving)
    after = truncate(aligned, num_layers=2).encode(OTHERS)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(load(tmp_path / "run" / "checkpoint-2", num_layers=2).encode(OTHERS), after, atol=1e-6)
