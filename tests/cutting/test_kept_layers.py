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
from torch import Tensor
from transformers import BertConfig

import st_matryoshka2d
from st_matryoshka2d import (
    DataWarning,
    GridResult,
    Size,
    align,
    asymmetric,
    encode_sizes,
    evaluate,
    load,
    sts_task,
    truncate,
)
from st_matryoshka2d.losses import RelationalDistillLoss
from st_matryoshka2d.model.cut_config import Cut
from st_matryoshka2d.model.layers import Layers
from tests.support import families
from tests.support.declared import declare_layers, declare_training
from tests.support.families import cut_by_hand
from tests.support.pipelines import KINDS, OTHERS, TEXTS, elastic, readouts, tasks, turned
from tests.support.quick import quick
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


@pytest.mark.parametrize(("layers", "num_layers"), [("ends", 3), ([1, 3, 4], None), ([2, 4], 2), ("first", 2)])
@pytest.mark.parametrize("kind", quick(KINDS, "three poolings, Dense, unit"))
def test_layers_of_a_model_that_is_not_aligned(
    layers: Any, num_layers: int | None, kind: str, tiny: SentenceTransformer, tmp_path: Path
) -> None:
    """A cut that keeps chosen layers equals the model without the others, in memory, from a folder and in a grid."""
    model = KINDS[kind](tiny, tmp_path)
    depth = num_layers or len(layers)
    chosen = {"ends": FOUR[depth], "first": list(range(1, depth + 1))}.get(str(layers), layers)
    model.save_pretrained(str(tmp_path / "model"))
    code = kind == "elastic"
    cut = truncate(model, num_layers=num_layers, layers=layers)
    loaded = load(tmp_path / "model", num_layers=num_layers, layers=layers, trust_remote_code=code)
    for name in tasks(model):
        with cut_by_hand(model, depth, [layer - 1 for layer in chosen]):
            expected = np.asarray(model.encode(OTHERS, task=name))
        for way in (cut, loaded):
            np.testing.assert_allclose(way.encode(OTHERS, task=name), expected, atol=2e-6)
    assert cut.config.matryoshka_cut.get("layers", [*range(1, depth + 1)]) == chosen
    assert loaded.config.matryoshka_cut == cut.config.matryoshka_cut
    assert not hasattr(model.config, "matryoshka_layers")


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
        "`heal` this size, or `align` the model for all depths.",
        "`align` the whole model that this is a cut of, and cut that.",
    ]


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


def by_hand(model: SentenceTransformer, depth: int, task: str | None = None) -> np.ndarray[Any, Any]:
    """Embed with blocks that were removed by hand, and the readout of the depth."""
    kept = [layer - 1 for layer in FOUR.get(depth, [1, 2, 3, 4])]

    def readout(module: Any, args: Any, output: dict[str, Tensor]) -> dict[str, Tensor]:
        linear = module.at(depth)
        return {**output, "sentence_embedding": linear(inputs[module])}

    inputs: dict[Any, Tensor] = {}
    hooks = [
        hook
        for module in readouts(model)
        for hook in (
            module.register_forward_pre_hook(lambda part, args: inputs.update({part: args[0]["sentence_embedding"]})),
            module.register_forward_hook(readout),
        )
    ]
    try:
        with cut_by_hand(model, depth, kept):
            return np.asarray(model.encode(OTHERS, task=task))
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("kind", quick(KINDS, "three poolings, Dense, unit", "router"))
def test_all_ways_to_a_size_equal_blocks_removed_by_hand(kind: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    aligned = turned(align(KINDS[kind](tiny, tmp_path), TEXTS, layers="ends"))
    aligned.save_pretrained(str(tmp_path / "whole"))
    whole = load(tmp_path / "whole", trust_remote_code=kind == "elastic")
    sizes = [Size(depth, 8) for depth in (1, 2, 4)]
    for task in tasks(aligned):
        expected = {size: by_hand(aligned, size.num_layers, task)[:, :8] for size in sizes}
        together = encode_sizes(aligned, OTHERS, sizes, task=task)
        for size in sizes:
            cut = truncate(aligned, size)
            cut.save_pretrained(str(tmp_path / str(size)))
            ways = {
                "together": together[size],
                "alone": encode_sizes(aligned, OTHERS, [size], task=task)[size],
                "cut": cut.encode(OTHERS, task=task),
                "plain": SentenceTransformer(str(tmp_path / str(size)), device="cpu").encode(
                    OTHERS, task=task, truncate_dim=8
                ),
                "loaded whole": truncate(whole, size).encode(OTHERS, task=task),
                "loaded": load(tmp_path / "whole", size, trust_remote_code=kind == "elastic").encode(OTHERS, task=task),
            }
            for name, found in ways.items():
                np.testing.assert_allclose(found, expected[size], atol=2e-6, err_msg=f"{name} at {size}")


FAMILIES = {**families.CONFIGS, **families.UNNAMED}


@pytest.mark.parametrize("name", quick(FAMILIES, "modernbert", "qwen3", "albert", "t5-encoder"))
def test_every_family_is_exact(name: str, tmp_path: Path) -> None:
    """Positions, windows and caches of blocks that move up."""
    model = families.pipeline(FAMILIES[name](), tmp_path / "weights", "mean", None, False)
    aligned = align(model, TEXTS, layers={2: [1, 4]})
    by_size = encode_sizes(aligned, OTHERS, ["1L-32d", "2L-32d", "3L-32d", "4L-32d"])
    for size, found in by_size.items():
        cut = truncate(aligned, size)
        ways = [cut, elastic(aligned)]
        if size.num_layers == 2:  # the depth that leaves out layers within
            cut.save_pretrained(str(tmp_path / "cut"))
            ways.append(SentenceTransformer(str(tmp_path / "cut"), device="cpu"))
        for way in ways:
            given = {"num_layers": size.num_layers} if way is aligned else {}
            scale = np.abs(found).max()
            np.testing.assert_allclose(way.encode(OTHERS, **given), found, atol=5e-6 * scale)
    aligned[0].num_layers = 2
    two = by_size[Size(2, 32)]
    np.testing.assert_allclose(aligned.encode(OTHERS), two, atol=5e-6 * np.abs(two).max(), err_msg="by default")


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
