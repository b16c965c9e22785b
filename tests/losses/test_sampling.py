"""Losses accept a `Size` and its text form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import Size
from st_matryoshka2d.losses import (
    PIC,
    FixedSizes,
    MIPICLoss,
    MultiSizeLoss,
    RelationalDistillLoss,
    StarbucksLoss,
    UniformSizes,
)
from st_matryoshka2d.losses.sampling import averaged

AS_TEXT = ["2L-8d", "4L-32d"]
AS_SIZES = [Size(2, 8), Size(4, 32)]
TAKERS: dict[str, Callable[[SentenceTransformer, MultipleNegativesRankingLoss, list[Size | str]], MultiSizeLoss]] = {
    "MultiSizeLoss": lambda model, task, sizes: MultiSizeLoss(model, task, sizes),
    "FixedSizes": lambda model, task, sizes: MultiSizeLoss(model, task, FixedSizes(sizes, sizes[-1])),
    "UniformSizes": lambda model, task, sizes: MultiSizeLoss(model, task, UniformSizes(sizes[-1], [8])),
    "PIC": lambda model, task, sizes: MultiSizeLoss(model, task, sizes, [PIC(sizes)]),
    "StarbucksLoss": lambda model, task, sizes: StarbucksLoss(model, task, sizes),
    "RelationalDistillLoss": lambda model, task, sizes: RelationalDistillLoss(model, sizes=sizes, loss=task),
    "MIPICLoss": lambda model, task, sizes: MIPICLoss(model, task, [2, 4], sizes, [8, 32], [0.5]),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_losses_take_sizes_and_their_text(tiny: SentenceTransformer, taker: str) -> None:
    made = [TAKERS[taker](tiny, MultipleNegativesRankingLoss(tiny), [*sizes]) for sizes in (AS_SIZES, AS_TEXT)]
    assert made[0].get_config_dict() == made[1].get_config_dict()
    assert made[0].sampler.candidates == made[1].sampler.candidates


def test_draws_are_averaged() -> None:
    weights, shares = averaged([{Size(2, 8): 1.0}, {Size(2, 8): 2.0, Size(4, 32): 1.0}])
    assert weights == {Size(2, 8): 1.5, Size(4, 32): 0.5}
    assert shares == {Size(2, 8): 1.0, Size(4, 32): 0.5}
