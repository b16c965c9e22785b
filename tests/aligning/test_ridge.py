"""The regression of readouts, compared with direct solves of its equation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from st_matryoshka2d.aligning import ridge
from st_matryoshka2d.aligning.ridge import Affine, fit_readout, left_out

DIM = 12
Array = NDArray[np.float64]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(texts: int, noise: float) -> tuple[Tensor, Tensor]:
    """States with very different variances per direction and a non-zero mean, and what they are mapped to."""
    x = drawn(0, texts, DIM) @ torch.diag(0.7 ** torch.arange(DIM)) @ drawn(1, DIM, DIM) + 0.3
    return x, x @ drawn(2, DIM, DIM) + noise * drawn(3, texts, DIM) - 0.7


def solved(x: Array, z: Array, strength: float) -> tuple[Array, Array, Array]:
    """Solve the normal equations of the docstring; return the transposed matrix, and the means of both sides."""
    far_x, far_z = x - x.mean(0), z - z.mean(0)
    plain = np.linalg.norm(far_z) / np.linalg.norm(far_x)
    moved = z.mean(0) - plain * x.mean(0)
    # James and Stein: how much of the squared distance of the means is chance, as each mean has the variance of its texts.
    chance = sum(((b - plain * a) ** 2).sum() for a, b in zip(far_x, far_z, strict=True)) / ((len(x) - 1) * len(x))
    mean = plain * x.mean(0) + moved * max(0.0, 1 - chance / (moved**2).sum())
    weighed = strength * len(x) * far_x.var(0).mean()
    slope = np.linalg.solve(far_x.T @ far_x + weighed * np.eye(DIM), far_x.T @ far_z + weighed * plain * np.eye(DIM))
    return slope, x.mean(0), mean


def expected(x: Array, z: Array) -> tuple[float, Array, Array, Array]:
    """Try each strength on the parts that are left out; return it, matrix, bias and predictions of these parts."""
    parts = [part.numpy() for part in left_out(len(x))]
    by_strength = []
    for strength in ridge._STRENGTHS:
        found, means = [], []
        for part in parts:
            slope, of_x, mean = solved(np.delete(x, part, axis=0), np.delete(z, part, axis=0), strength)
            found.append((x[part] - of_x) @ slope)
            means.append(np.tile(mean, (len(part), 1)))
        by_strength.append((np.concatenate(found), np.concatenate(means)))
    held = np.concatenate(parts)
    errors = [((deviations + means - z[held]) ** 2).sum() for deviations, means in by_strength]
    best = int(np.argmin(errors))
    deviations, means = by_strength[best]
    spread = np.linalg.norm(z[held] - means) / np.linalg.norm(deviations)
    if len(parts) == 1:
        x, z = np.delete(x, held, axis=0), np.delete(z, held, axis=0)
    slope, of_x, mean = solved(x, z, ridge._STRENGTHS[best])
    return ridge._STRENGTHS[best], spread * slope.T, mean - spread * of_x @ slope, means + spread * deviations


@pytest.mark.parametrize(("texts", "noise"), [(DIM, 3.0), (60, 1.0), (2500, 0.5)], ids=str)
def test_the_map_solves_its_equation(texts: int, noise: float) -> None:
    x, z = made(texts, noise)
    found = fit_readout(x, z)
    _, weight, bias, predicted = expected(x.double().numpy(), z.double().numpy())
    # Float32 is coarse along directions with little variance.
    np.testing.assert_allclose(found.readout.weight, weight, atol=0.02)
    np.testing.assert_allclose(found.readout(x), x.numpy() @ weight.T + bias, atol=2e-3)
    np.testing.assert_allclose(found.predicted, predicted, atol=2e-3)


def test_of_many_texts_the_map_does_not_see_those_that_measure_it() -> None:
    x, z = made(2500, 1.0)
    found = fit_readout(x, z)
    torch.testing.assert_close(found.readout(x[found.held]), found.predicted, atol=1e-4, rtol=1e-4)


def test_few_noisy_texts_stay_nearer_to_the_plain_cut() -> None:
    strengths = [
        expected(*(rows.double().numpy() for rows in made(texts, noise)))[0] for texts, noise in ((12, 9.0), (2500, 0.01))
    ]
    assert strengths[0] > 100 * strengths[1]


def test_a_prediction_does_not_depend_on_its_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge, "_STRENGTHS", [0.01])
    x, z = made(60, 1.0)
    part = left_out(60)[0]
    changed = z.clone()
    changed[part[0]] += 10
    before, after = (fit_readout(x, each).predicted[: len(part)] for each in (z, changed))
    # One factor for all makes the deviations as wide as the true ones, so compare their directions.
    before, after = (rows - rows.mean(0) for rows in (before, after))
    torch.testing.assert_close(after / after.norm(), before / before.norm(), atol=1e-5, rtol=0)
    seen, seen_after = (fit_readout(x, each).readout(x[part]) for each in (z, changed))
    assert (seen - seen_after).abs().max() > 0.01, "a map that has seen the text knows it"


@pytest.mark.parametrize("texts", [60, 3000])
def test_each_text_of_few_is_left_out_once_and_a_tenth_of_many(texts: int) -> None:
    held = torch.cat(left_out(texts)).tolist()
    assert len(set(held)) == len(held) == {60: 60, 3000: 300}[texts]


def test_with_a_huge_strength_it_is_the_plain_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge, "_STRENGTHS", [1e9])
    x, z = made(60, 1.0)
    weight = fit_readout(x, z).readout.weight
    assert weight[0, 0] > 0
    torch.testing.assert_close(weight, weight[0, 0] * torch.eye(DIM), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dim", [1, DIM])
@pytest.mark.parametrize("texts", [1, 2, 3, 4])
@pytest.mark.parametrize("constant", ["", "x", "z", "xz"], ids=["none", "x", "z", "both"])
def test_hardly_any_texts_give_finite_maps(constant: str, texts: int, dim: int) -> None:
    x, z = (drawn(seed, 1 if name in constant else texts, dim).expand(texts, dim) for seed, name in enumerate("xz"))
    found = fit_readout(x, z)
    for values in (found.readout.weight, found.readout.bias, found.predicted):
        assert values.isfinite().all()


def test_an_affine_map_composes() -> None:
    x, _ = made(20, 1.0)
    one, turn, linear = Affine(drawn(1, DIM, DIM), drawn(2, DIM)), drawn(3, DIM, DIM), nn.Linear(DIM, DIM)
    with torch.no_grad():
        assert torch.allclose(one(x), x @ one.weight.T + one.bias)
        assert torch.allclose(one.then(turn)(x), one(x) @ turn.T, atol=1e-4)
        assert torch.allclose(one.after(linear)(x), one(linear(x)), atol=1e-4)
        assert torch.allclose(one.times(2.5)(x), 2.5 * one(x), atol=1e-5)
