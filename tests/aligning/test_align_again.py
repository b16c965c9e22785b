"""What a model is before it is aligned, and aligning again: what stays, and what is declared."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, align, encode_sizes, evaluate, sts_task, truncate
from st_matryoshka2d.aligning import aligned_model as module
from st_matryoshka2d.aligning.aligned_model import starting_point, trained_narrow
from st_matryoshka2d.losses import RelationalDistillLoss
from st_matryoshka2d.model.pipeline import Pipeline
from tests.support.declared import declare_layers, declare_training
from tests.support.losses import batch
from tests.support.pipelines import OTHERS, SIZES, TEXTS, products, readouts, routed

ENDS = {"1": [1], "2": [1, 4], "3": [1, 3, 4]}


def layers(model: SentenceTransformer, choice: Any) -> dict[str, list[int]]:
    return starting_point(Pipeline.of(model), choice).layers.written()


def test_a_fresh_model_keeps_both_ends(tiny: SentenceTransformer) -> None:
    assert layers(tiny, None) == ENDS
    assert layers(tiny, "first") == {}, "the first"
    assert layers(tiny, {2: [1, 3]}) == {"1": [1], "2": [1, 3], "3": [1, 2, 3]}
    assert not hasattr(tiny.config, "matryoshka_layers"), "the model given is as it was"


def test_layers_that_were_chosen_before_stay(tiny: SentenceTransformer) -> None:
    first = align(tiny, TEXTS, layers="first", steps=0)
    assert layers(first, None) == {}
    assert layers(first, "ends") == ENDS
    declare_layers(tiny.config, {1: [2], 2: [2, 4], 3: [1, 2, 3]})
    assert layers(tiny, None) == {"1": [2], "2": [2, 4], "3": [1, 2, 3]}


@pytest.mark.parametrize(("trained", "expected"), [(Size(2, 8), {}), (Size(4, 8), ENDS)], ids=["depths", "dims"])
def test_a_model_trained_for_shallower_sizes_keeps_its_first_layers(
    trained: Size, expected: object, tiny: SentenceTransformer
) -> None:
    declare_training(tiny.config, [trained, Size(4, 32)], "MatryoshkaLoss")
    assert layers(tiny, None) == expected


def test_layers_that_only_work_in_a_row_are_the_first(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("the layers only work in a row")

    monkeypatch.setattr(module, "check_routes", refuse)
    assert layers(tiny, None) == {}
    assert layers(tiny, "ends") == ENDS, "whoever asks for them is told later"


TOLD: dict[str, Callable[[SentenceTransformer], object]] = {
    "config": lambda model: setattr(model.config, "is_matryoshka", True),
    "dims": lambda model: setattr(model.config, "matryoshka_dimensions", [8, 32]),
    "tag": lambda model: model.model_card_data.add_tags("loss:MatryoshkaLoss"),
}


@pytest.mark.parametrize("how", TOLD)
def test_a_model_trained_for_several_dims_says_so(how: str, tiny: SentenceTransformer) -> None:
    assert not trained_narrow(Pipeline.of(tiny))
    TOLD[how](tiny)
    assert trained_narrow(Pipeline.of(tiny))


def test_a_cut_in_depth_alone_was_not_trained_for_several_dims(tiny: SentenceTransformer) -> None:
    assert not trained_narrow(Pipeline.of(truncate(tiny, num_layers=3)))


def test_the_card_a_model_was_loaded_with_says_so(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path))
    assert not trained_narrow(Pipeline.of(SentenceTransformer(str(tmp_path), device="cpu")))
    with (tmp_path / "README.md").open("a", encoding="utf-8") as card:
        card.write("\nIt was trained with Matryoshka representation learning.\n")
    assert trained_narrow(Pipeline.of(SentenceTransformer(str(tmp_path), device="cpu")))


def apart(model: SentenceTransformer, depth: int) -> float:
    """Return the mean cosine distance between texts at a depth and in the whole model."""
    by_size = encode_sizes(model, TEXTS, [Size(depth, 32), Size(4, 32)], normalize_embeddings=True)
    small, whole = by_size.values()
    return float(1 - (small * whole).sum(axis=1).mean())


@pytest.mark.parametrize("kind", ["plain", "router"])
def test_aligning_again_composes_readouts(kind: str, tiny: SentenceTransformer) -> None:
    model = tiny if kind == "plain" else routed(tiny, shared=False)
    once = align(model, TEXTS, steps=5)
    before = {name: tensor.clone() for name, tensor in once.state_dict().items()}
    twice = align(once, TEXTS, steps=5)
    assert len(readouts(twice)) == len(readouts(once))
    assert len(list(twice.children())) == len(list(once.children()))
    for task in ("query", "document") if kind == "router" else (None,):
        expected = products(model, task)
        assert np.abs(products(twice, task) - expected).max() < 2e-6 * np.abs(expected).max()
    assert all(torch.equal(tensor, before[name]) for name, tensor in once.state_dict().items()), "the first is as it was"


def test_aligning_again_after_training_restores_fit(tiny: SentenceTransformer) -> None:
    aligned = align(tiny, TEXTS, steps=5)
    with torch.no_grad():
        for parameter in aligned[0].model.encoder.layer[1:].parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    expected = products(aligned)
    index = aligned.encode(OTHERS)
    again = align(aligned, TEXTS, steps=5)
    assert np.abs(products(again) - expected).max() < 2e-6 * np.abs(expected).max()
    assert np.array_equal(again.encode(OTHERS), index), "what was indexed can still be searched"
    for depth in (1, 2, 3):
        assert apart(again, depth) < 0.7 * apart(aligned, depth)


def test_leaves_model_unchanged(tiny: SentenceTransformer) -> None:
    before = tiny.encode(OTHERS)
    aligned = align(tiny, TEXTS, steps=2)
    assert np.array_equal(tiny.encode(OTHERS), before)
    assert len(tiny) == 2
    assert not hasattr(tiny.config, "matryoshka_readouts")
    with torch.no_grad():
        next(aligned.parameters()).mul_(0)  # shared memory would follow
    assert not np.array_equal(tiny.encode(OTHERS), before)


def test_half_precision_stays(tiny: SentenceTransformer) -> None:
    half = copy.deepcopy(tiny).to(torch.bfloat16)
    aligned = align(half, TEXTS, steps=2)
    assert {parameter.dtype for parameter in aligned.parameters()} == {torch.bfloat16}
    cosines = [model.similarity(embedded, embedded) for model in (half, aligned) for embedded in [model.encode(OTHERS)]]
    assert (cosines[0] - cosines[1]).abs().max() < 0.02
    for depth in (1, 2, 3):
        by_size = encode_sizes(aligned, OTHERS, [Size(depth, 32)])[Size(depth, 32)]
        cut = truncate(aligned, num_layers=depth, dim=32).encode(OTHERS, convert_to_tensor=True).float().numpy()
        np.testing.assert_allclose(by_size, cut, atol=0.02 * np.abs(cut).max())


def test_a_model_of_one_layer_is_rotated(tiny: SentenceTransformer) -> None:
    one = truncate(tiny, num_layers=1)
    aligned = align(one, TEXTS)
    assert aligned.config.matryoshka_readouts == []
    assert readouts(aligned)[0].depths == []
    assert np.abs(products(aligned) - products(one)).max() < 2e-6 * np.abs(products(one)).max()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_sizes(aligned, OTHERS, ["1L-8d"])


@pytest.mark.usefixtures("more_than_20_are_many")
def test_without_steps_there_is_no_refinement(tiny: SentenceTransformer) -> None:
    closed, refined = (align(tiny, TEXTS, steps=steps) for steps in (0, 20))
    assert torch.equal(readouts(closed)[0].linear.weight, readouts(refined)[0].linear.weight)
    assert not torch.equal(readouts(closed)[0].at(2).weight, readouts(refined)[0].at(2).weight)
    assert apart(closed, 2) < 0.3 * apart(tiny, 2)


@pytest.mark.usefixtures("more_than_20_are_many")
def test_refines_for_given_sizes_and_records_them(tiny: SentenceTransformer) -> None:
    aligned, by_default = align(tiny, TEXTS, ["2L-6d", Size(3, 32)], steps=5), align(tiny, TEXTS, steps=5)
    for depth, changed in ((1, False), (2, True), (3, False)):
        found, usual = (readouts(model)[0].at(depth).weight for model in (aligned, by_default))
        assert torch.equal(found, usual) is not changed, "only a depth with small dims is refined for them"
    assert aligned.config.matryoshka_readouts == [1, 2, 3]
    assert set(aligned.config.matryoshka_sizes) == {"1L-32d", "2L-6d", "2L-32d", "3L-32d", "4L-6d", "4L-32d"}
    assert aligned.config.matryoshka_dimensions == [6, 32]
    scored = evaluate(tiny, sts_task(pd.DataFrame({"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": range(40)}))).sizes
    assert by_default.config.matryoshka_sizes == list(map(str, sorted(scored)))


def test_config_records_alignment(tiny: SentenceTransformer) -> None:
    once = align(tiny, pd.Series(TEXTS), SIZES, steps=1)
    assert once.config.matryoshka_loss == "align"
    again = align(once, TEXTS, ["3L-8d"], steps=1)
    assert set(again.config.matryoshka_sizes) == {"1L-32d", "2L-32d", "3L-8d", "3L-32d", "4L-8d", "4L-32d"}
    assert again.config.matryoshka_loss == "align"
    RelationalDistillLoss(once.train(), sizes=[Size(2, 5), Size(4, 32)])(batch(once, 2)).backward()
    trained = align(once, TEXTS, ["3L-8d"], steps=1)
    assert trained.config.matryoshka_loss == "RelationalDistillLoss, align"
    assert {"2L-5d", "3L-8d"} <= set(trained.config.matryoshka_sizes), "it was trained at the others"
    again = align(trained, TEXTS, ["3L-8d"], steps=1)
    assert again.config.matryoshka_loss == "RelationalDistillLoss, align"
