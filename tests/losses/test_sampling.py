"""The sizes that a step trains: given as sizes or as text, or drawn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
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


def test_2dmse_draws_every_layer_below_the_last_and_every_dim_below_the_full() -> None:
    torch.manual_seed(0)
    sampler = UniformSizes(Size(4, 32), [8, 16])
    draws = [list(sampler.draw()) for _ in range(300)]
    assert all(full == Size(4, 32) for full, *_ in draws)
    drawn = [small for *_, small in draws]
    counts = {size: drawn.count(size) for size in set(drawn)}
    assert set(counts) == {Size(n, d) for n in (1, 2, 3) for d in (8, 16)}
    assert all(25 <= count <= 80 for count in counts.values()), counts
    assert {size for draw in draws for size in draw} <= set(sampler.candidates)


def test_draws_follow_the_seed_and_nothing_else_that_is_random() -> None:
    drawn = []
    for others in (0, 3):
        torch.manual_seed(0)
        sampler = UniformSizes(Size(12, 768), [8, 16, 32])
        drawn.append([(torch.rand(others), sampler.draw())[1] for _ in range(5)])
    assert drawn[0] == drawn[1]
