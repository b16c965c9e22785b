"""Fitting of readouts, each step compared with a naive implementation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from st_matryoshka2d.aligning import refine, rotation
from st_matryoshka2d.aligning import ridge as regression
from st_matryoshka2d.aligning.refine import refined
from st_matryoshka2d.aligning.ridge import Affine, Sums, fit_readout
from st_matryoshka2d.aligning.rotation import damped, shared_rotation
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


def sums(x: Tensor, z: Tensor, chunk: int = TEXTS) -> Sums:
    made = Sums(x.shape[1])
    for start in range(0, len(x), chunk):
        made.add(x[start : start + chunk], z[start : start + chunk])
    return made


def ridge(x: Tensor, z: Tensor, strength: float) -> Ridge:
    """Ridge uses sums where the equation uses means, so its strength is multiplied by the number of texts."""
    mean_variance = float((x.double() - x.double().mean(0)).square().mean())
    return Ridge(alpha=strength * mean_variance * len(x)).fit(x.double().numpy(), z.double().numpy())


def only(strength: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression, "_STRENGTHS", [strength] * 2)


@pytest.mark.parametrize("strength", [1e-5, 1e-2, 1.0])
def test_the_regression_is_a_ridge(x: Tensor, z: Tensor, strength: float, monkeypatch: pytest.MonkeyPatch) -> None:
    only(strength, monkeypatch)
    found = fit_readout(sums(x[:150], z[:150]), sums(x[150:], z[150:]))
    expected = ridge(x, z, strength)
    np.testing.assert_allclose(found(x).numpy(), expected.predict(x.double().numpy()), atol=2e-3)
    if strength > 1e-3:
        np.testing.assert_allclose(found.weight.numpy(), expected.coef_, atol=1e-3)
        np.testing.assert_allclose(found.bias.numpy(), expected.intercept_, atol=1e-3)


def test_zero_strength_is_least_squares(z: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    only(0.0, monkeypatch)
    x = drawn(4, TEXTS, DIM)
    found = fit_readout(sums(x, z), Sums(DIM))
    with_one = torch.cat([x, torch.ones(TEXTS, 1)], dim=1).double()
    expected = torch.linalg.lstsq(with_one, z.double()).solution
    assert torch.allclose(torch.cat([found.weight.T, found.bias[None]]).double(), expected, atol=1e-4)


def test_strength_minimizes_held_out_error() -> None:
    """Strong with hardly more texts than dims, weak with many texts and little noise."""
    slope, picked = drawn(5, DIM, DIM), []
    for texts, noise in ((DIM + 2, 3.0), (5000, 0.01)):
        x = drawn(6, texts + 500, DIM)
        z = x @ slope + noise * drawn(7, texts + 500, DIM)
        parts = sums(x[:texts], z[:texts], texts), sums(x[texts:], z[texts:], 500)
        errors = [
            float(
                (torch.from_numpy(ridge(x[:texts], z[:texts], each).predict(x[texts:].numpy())) - z[texts:]).square().mean()
            )
            for each in regression._STRENGTHS
        ]
        best = regression._STRENGTHS[int(np.argmin(errors))]
        expected = ridge(x, z, best).predict(x.numpy())
        np.testing.assert_allclose(fit_readout(*parts)(x).numpy(), expected, atol=1e-3)
        picked.append(best)
    assert picked[0] > picked[1]


def test_one_text_can_be_fitted_too() -> None:
    found = fit_readout(sums(drawn(0, 1, DIM), drawn(1, 1, DIM)), Sums(DIM))
    assert torch.allclose(found(drawn(0, 1, DIM)), drawn(1, 1, DIM), atol=1e-5)


def test_sums_match_loop_over_texts(x: Tensor, z: Tensor) -> None:
    whole, (x, z) = sums(x, z), (x.double(), z.double())
    for centre in ((x.mean(0), z.mean(0)), (drawn(8, DIM).double(), drawn(9, DIM).double())):
        of_x, with_z = whole.about(centre)
        far_x, far_z = x - centre[0], z - centre[1]
        assert torch.allclose(of_x, sum(torch.outer(a, a) for a in far_x) / TEXTS, atol=1e-5)  # type: ignore[arg-type]
        assert torch.allclose(with_z, sum(map(torch.outer, far_x, far_z)) / TEXTS, atol=1e-5)  # type: ignore[arg-type]
    assert torch.allclose(whole.covariance, torch.cov(x.T, correction=0), atol=1e-5)


def test_rotation_is_orthogonal_and_sorted_by_variance(x: Tensor) -> None:
    spread = torch.cov(x.T).double()
    turn = shared_rotation(spread)
    assert (turn @ turn.T - torch.eye(DIM)).abs().max() < 1e-5
    assert torch.equal(turn, shared_rotation(spread.clone()))
    variances = (turn @ spread @ turn.T).diag()
    mixed = DIM // rotation._MIXED
    assert variances[:mixed].sum() == pytest.approx(float(torch.linalg.eigvalsh(spread).flip(0)[:mixed].sum()))
    assert all(a >= b - 1e-12 for a, b in pairwise(variances[mixed:].tolist()))


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_few_dims_can_be_rotated(dim: int) -> None:
    turn = shared_rotation(torch.eye(dim, dtype=torch.float64))
    assert (turn @ turn.T - torch.eye(dim)).abs().max() < 1e-5


def test_damps_poorly_predicted_coordinates(x: Tensor) -> None:
    spread = torch.cov(x.T).double()
    readout = Affine(torch.eye(DIM), torch.ones(DIM))
    of_whole = spread.diag().float() * torch.tensor([1.0] * (DIM - 2) + [16.0, 0.25])
    factors = damped(readout, spread, of_whole).weight.diag()
    assert factors[:-2] == pytest.approx(np.ones(DIM - 2), abs=1e-5)
    assert factors[-2:].tolist() == pytest.approx([16**-0.3, 1.0], abs=1e-5), "never longer"
    assert damped(readout, spread, of_whole).bias == pytest.approx(factors)


def slow_distance(embedded: Tensor, whole: Tensor, dims: list[int]) -> Tensor:
    """Compute the objective of `refined` text by text."""
    rows = range(len(whole))

    def to_others(i: int, left: Tensor, right: Tensor) -> list[Tensor]:
        return [oracles.cosine(left[i], right[j]) for j in rows if j != i]

    def divergence(i: int, left: Tensor, right: Tensor) -> Tensor:
        return oracles.kl(softmax(to_others(i, left, right)), softmax(to_others(i, whole, whole)))

    def softmax(scores: list[Tensor]) -> list[Tensor]:
        return oracles.distribution(scores, 0.05)

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
    found, expected = refine._distance(ours, whole, dims), slow_distance(theirs, whole, dims)
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    found.backward()
    expected.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert ours.grad.abs().max() > 0.01
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-9)


def test_refinement_reduces_loss_at_given_dims(x: Tensor, z: Tensor) -> None:
    start = {1: Affine(torch.eye(DIM), torch.zeros(DIM)), 2: Affine(torch.eye(DIM), torch.ones(DIM))}
    told = {"states": {1: x, 2: x}, "whole": z, "small": {1: [2, 4]}, "device": "cpu", "hide_progress_bar": True}
    made, again = (refined(start, steps=30, **told) for _ in range(2))  # type: ignore[arg-type]
    for depth, small in ((1, [2, 4]), (2, [])):
        before, after = (float(slow_distance(readout[depth](x)[:20], z[:20], small)) for readout in (start, made))
        assert after < before
    assert torch.equal(made[1].weight, again[1].weight)
    assert torch.equal(start[1].weight, torch.eye(DIM)), "what it starts from is not changed"


def test_an_affine_map_composes(x: Tensor) -> None:
    one, turn, linear = Affine(drawn(1, DIM, DIM), drawn(2, DIM)), drawn(3, DIM, DIM), nn.Linear(DIM, DIM)
    with torch.no_grad():
        assert torch.allclose(one(x), x @ one.weight.T + one.bias)
        assert torch.allclose(one.then(turn)(x), one(x) @ turn.T, atol=1e-4)
        assert torch.allclose(one.after(linear)(x), one(linear(x)), atol=1e-4)
        assert torch.allclose(one.times(2.5)(x), 2.5 * one(x), atol=1e-5)
