"""Refinement of readouts: its objective text by text, and what it is relative to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from st_matryoshka2d.aligning import refine
from st_matryoshka2d.aligning.refine import Refinement, refined
from st_matryoshka2d.aligning.ridge import Affine
from st_matryoshka2d.sizes import Size
from tests.support import oracles

TEXTS, DIM = 200, 12


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def x() -> Tensor:
    """States with very different variances per direction, and a non-zero mean."""
    return drawn(0, TEXTS, DIM) @ torch.diag(0.5 ** torch.arange(DIM)) @ drawn(1, DIM, DIM) + 0.3


@pytest.fixture
def z(x: Tensor) -> Tensor:
    return x @ drawn(2, DIM, DIM) + 0.5 * drawn(3, TEXTS, DIM) - 0.7


def spread_of_cosines(whole: Tensor) -> float:
    cosines = [float(oracles.cosine(left, right)) for place, left in enumerate(whole) for right in whole[:place]]
    return float(np.std(cosines, ddof=1))


def slow_distance(embedded: Tensor, whole: Tensor, dims: list[int], temperature: float) -> Tensor:
    """Compute the objective of `refined` text by text."""
    rows = range(len(whole))

    def to_others(i: int, left: Tensor, right: Tensor) -> list[Tensor]:
        return [oracles.cosine(left[i], right[j]) for j in rows if j != i]

    def divergence(i: int, left: Tensor, right: Tensor) -> Tensor:
        return oracles.kl(softmax(to_others(i, left, right)), softmax(to_others(i, whole, whole)))

    def softmax(scores: list[Tensor]) -> list[Tensor]:
        return oracles.distribution(scores, temperature)

    def correlation(i: int, left: Tensor) -> Tensor:
        return torch.corrcoef(torch.stack([torch.stack(to_others(i, each, each)) for each in (left, whole)]))[0, 1]

    losses = []
    for i in rows:
        small = [
            divergence(i, embedded[:, :d], embedded[:, :d])
            + 1
            - correlation(i, embedded[:, :d])
            + 0.4 * (1 - oracles.cosine(embedded[i, :d], whole[i, :d]))
            for d in dims
        ]
        across = 6 * divergence(i, embedded, whole) + 8 * (1 - oracles.cosine(embedded[i], whole[i]))
        at_small = torch.stack(small).mean() if small else 0
        losses.append(at_small + divergence(i, embedded, embedded) + across)
    return torch.stack(losses).mean()


@pytest.mark.parametrize("dims", [[], [3], [2, 5]])
def test_refinement_objective_matches_equation(dims: list[int]) -> None:
    whole = drawn(10, 7, 8).double()
    ours, theirs = (nn.Parameter(drawn(11, 7, 8).double() + whole) for _ in range(2))
    pairs = ((refine._distance, ours), (slow_distance, theirs))
    found, expected = (distance(each, whole, dims, 0.05) for distance, each in pairs)
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    found.backward()
    expected.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert ours.grad.abs().max() > 0.01
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-9)


def test_refinement_reduces_its_objective(x: Tensor, z: Tensor) -> None:
    start = {1: Affine(torch.eye(DIM), torch.zeros(DIM)), 2: Affine(torch.eye(DIM), torch.ones(DIM))}
    how = Refinement([Size(1, 2), Size(1, 4)], 30, torch.device("cpu"), True)
    made, again = (refined(start, {1: x, 2: x}, z, how) for _ in range(2))
    temperature = 0.55 * spread_of_cosines(z)
    for depth, small in ((1, [2, 4]), (2, [])):
        before, after = (float(slow_distance(each[depth](x)[:20], z[:20], small, temperature)) for each in (start, made))
        assert after < before
    assert torch.equal(made[1].weight, again[1].weight)
    assert torch.equal(start[1].weight, torch.eye(DIM)), "what it starts from is not changed"


@pytest.mark.parametrize("mean", [0.0, 10.0], ids=["cosines of a wide range", "cosines of a narrow range"])
def test_the_temperature_is_relative_to_the_spread_of_cosines(
    mean: float, x: Tensor, z: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[float] = []
    distance = refine._distance
    monkeypatch.setattr(refine, "_distance", lambda *given: used.append(given[3]) or distance(*given))
    start = {1: Affine(torch.eye(DIM), torch.zeros(DIM))}
    refined(start, {1: x}, z + mean, Refinement((), 2, torch.device("cpu"), True))
    assert used == pytest.approx([0.55 * spread_of_cosines(z + mean)] * 2, rel=1e-3)
