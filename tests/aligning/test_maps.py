"""The regressions of readouts and of maps into another space, compared with direct solves, scikit-learn and loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from st_matryoshka2d.aligning import ridge
from st_matryoshka2d.aligning.other_space import _STRENGTHS, Hidden, Moments, _Regression, fit_into
from st_matryoshka2d.aligning.ridge import Affine, Fitted, calibrated, fit_readout, left_out, less_shifted

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
    # James and Stein: how much of the squared distance of the means is chance, as each mean has the
    # variance of its texts.
    chance = sum(((b - plain * a) ** 2).sum() for a, b in zip(far_x, far_z, strict=True)) / ((len(x) - 1) * len(x))
    mean = plain * x.mean(0) + moved * max(0.0, 1 - chance / (moved**2).sum())
    weighed = strength * len(x) * far_x.var(0).mean()
    slope = np.linalg.solve(far_x.T @ far_x + weighed * np.eye(DIM), far_x.T @ far_z + weighed * plain * np.eye(DIM))
    return slope, x.mean(0), mean


def expected(x: Array, z: Array) -> tuple[float, Array, Array, Array]:
    """Try each strength on the parts that are left out; return one, matrix, bias and predictions of these parts."""
    parts = [part.numpy() for part in left_out(len(x))]
    by_strength = []
    for strength in [*ridge._STRENGTHS, 1e12]:  # the last is the plain cut
        found, means = [], []
        for part in parts:
            slope, of_x, mean = solved(np.delete(x, part, axis=0), np.delete(z, part, axis=0), strength)
            found.append((x[part] - of_x) @ slope)
            means.append(np.tile(mean, (len(part), 1)))
        by_strength.append((np.concatenate(found), np.concatenate(means)))
    held = np.concatenate(parts)
    errors = [((deviations + means - z[held]) ** 2).sum() for deviations, means in by_strength]
    gains = errors[-1] - np.array(errors[:-1])
    best = int(np.flatnonzero(gains >= 0.9 * gains.max())[-1])
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


@pytest.mark.parametrize("texts", [60, 3000])
def test_each_text_of_few_is_left_out_once_and_a_tenth_of_many(texts: int) -> None:
    held = torch.cat(left_out(texts)).tolist()
    assert len(set(held)) == len(held) == {60: 60, 3000: 300}[texts]


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


COUNT, NARROW = 30, 6


def fitted(x: Tensor) -> Fitted:
    readout = Affine(drawn(1, NARROW, NARROW), drawn(2, NARROW))
    return Fitted(readout, torch.arange(len(x)), readout(x))


def slow(z: Tensor, predicted: Tensor) -> tuple[float, Tensor]:
    """Return s, and (k - s) times the mean of the predictions."""
    mean, true_mean = (sum(rows) / len(rows) for rows in (predicted, z))
    true = sum(float((row - true_mean) @ (row - true_mean)) for row in z)
    along = sum(float((row - true_mean) @ (guess - mean)) for row, guess in zip(z, predicted, strict=True))
    return true / along, (np.linalg.norm(true_mean) / np.linalg.norm(mean) - true / along) * mean


def test_calibration_follows_its_equation() -> None:
    x = drawn(0, COUNT, NARROW) + 1
    before = fitted(x)
    z = 1.3 * before.predicted + drawn(3, COUNT, NARROW)
    factor, moved = slow(z, before.predicted)
    after = calibrated(before, z)
    torch.testing.assert_close(after.predicted, factor * before.predicted + moved)
    torch.testing.assert_close(after.readout(x), after.predicted)
    far, true = after.predicted - after.predicted.mean(0), z - z.mean(0)
    assert float((far * true).sum() / true.square().sum()) == pytest.approx(1, abs=1e-5), "as large along the true ones"
    assert float(after.predicted.mean(0).norm()) == pytest.approx(float(z.mean(0).norm()), rel=1e-5)


def test_deviations_are_at_most_twice_as_large_as_the_true_ones() -> None:
    before = fitted(drawn(0, COUNT, NARROW))
    z = 0.1 * before.predicted + drawn(3, COUNT, NARROW)
    assert slow(z, before.predicted)[0] * (before.predicted - before.predicted.mean(0)).norm() > 2 * (z - z.mean(0)).norm()
    after = calibrated(before, z)
    assert float((after.predicted - after.predicted.mean(0)).norm() / (z - z.mean(0)).norm()) == pytest.approx(2, abs=1e-5)


def test_where_nothing_is_along_the_true_deviations_only_the_spread_counts() -> None:
    before = fitted(drawn(0, COUNT, NARROW))
    z = 3 - 2 * before.predicted
    after = calibrated(before, z)
    torch.testing.assert_close(after.readout.weight, 2 * before.readout.weight)


@pytest.mark.parametrize("predicted", ["constant", "zero", "varied"])
@pytest.mark.parametrize("true", ["constant", "zero", "varied"])
def test_constant_embeddings_give_finite_maps(predicted: str, true: str) -> None:
    of_true, of_predicted = (
        {"constant": torch.ones(COUNT, NARROW), "zero": torch.zeros(COUNT, NARROW)}.get(kind, drawn(0, COUNT, NARROW))
        for kind in (true, predicted)
    )
    affine = Affine(torch.eye(NARROW), torch.zeros(NARROW))
    after = calibrated(Fitted(affine, torch.arange(COUNT), of_predicted), of_true)
    for values in (after.readout.weight, after.readout.bias, after.predicted):
        assert values.isfinite().all()
        assert values.abs().max() < 1e3


@pytest.mark.parametrize(("shift", "noise"), [(0.1, 0.5), (2.0, 0.5), (0.0, 0.0)], ids=["small", "large", "nothing is off"])
def test_a_shift_counts_as_one_draw(shift: float, noise: float) -> None:
    x, weight, bias = drawn(0, COUNT, NARROW), drawn(1, NARROW, NARROW), shift * drawn(2, NARROW)
    before = Fitted(Affine(weight, bias), torch.arange(COUNT), x @ weight.T + bias)
    z = before.predicted + noise * drawn(3, COUNT, NARROW)
    after = less_shifted(before, z)
    off = sum(float((row - guess) @ (row - guess)) for row, guess in zip(z, before.predicted, strict=True)) / COUNT
    length = float(bias @ bias)
    kept = length / (length + off) if off else 1.0
    torch.testing.assert_close(after.readout.bias, kept * bias)
    assert torch.equal(after.readout.weight, weight)
    torch.testing.assert_close(after.predicted, after.readout(x))


NARROW = 6


def bent(texts: int, out: int = NARROW) -> tuple[Tensor, Tensor]:
    """Embeddings, and what a bent map makes of them, with a mean and noise."""
    x = drawn(0, texts, NARROW) + 0.5
    return x, torch.tanh(x @ drawn(1, NARROW, out)) + 0.1 * drawn(2, texts, out) + 2


def features(hidden: Hidden, x: Tensor) -> Tensor:
    return hidden(x).detach()


def test_features_contain_the_embedding() -> None:
    x, _ = bent(50)
    hidden, weight = Hidden(x, 5), drawn(3, 4, NARROW)
    mapped = features(hidden, x) @ hidden.of_linear(weight).T
    offset = mapped - x @ weight.T
    assert torch.allclose(offset, offset[:1].expand_as(offset), atol=1e-5)


@pytest.mark.parametrize("units", [1, 9])
@pytest.mark.parametrize("strength", [3.0, 0.01])
def test_a_map_is_the_ridge_regression_of_what_the_rotation_leaves(units: int, strength: float) -> None:
    x, z = bent(300)
    hidden = Hidden(x, units)
    found = _Regression(Moments.of(x, z, hidden), hidden).map(strength)
    far_x, far_z = (x - x.mean(0)).double().numpy(), (z - z.mean(0)).double().numpy()
    rotation, total = orthogonal_procrustes(far_x, far_z)
    turned = total / (far_x**2).sum() * far_x @ rotation
    penalty = strength * (far_x**2).mean() * len(x)
    rest = Ridge(alpha=penalty).fit(features(hidden, x).double().numpy(), far_z - turned)
    new = drawn(4, 20, NARROW)
    turned = total / (far_x**2).sum() * (new - x.mean(0)).double().numpy() @ rotation
    wanted = turned + rest.predict(features(hidden, new).double().numpy()) + z.mean(0).double().numpy()
    np.testing.assert_allclose(found(features(hidden, new)), wanted, atol=2e-5)


@pytest.mark.parametrize("texts", [200, 2400])
def test_the_strength_is_the_best_on_texts_left_out_and_the_map_is_fitted_on_all(texts: int) -> None:
    x, z = bent(texts)
    hidden, parts = Hidden(x, 40), left_out(texts)
    errors = []
    for strength in _STRENGTHS:
        found = []
        for part in parts:
            seen = torch.ones(texts, dtype=torch.bool)
            seen[part] = False
            readout = _Regression(Moments.of(x[seen], z[seen], hidden), hidden).map(strength)
            found.append(readout(features(hidden, x[part])))
        errors.append(float((torch.cat(found) - z[torch.cat(parts)]).square().sum()))
    best = _STRENGTHS[int(np.argmin(errors))]
    fitted = fit_into(x, z, hidden)
    # The spread is given back along one line, so deviations stay in proportion.
    wanted = _Regression(Moments.of(x, z, hidden), hidden).map(best).weight
    factor = float((fitted.readout.weight / wanted).median())
    assert factor > 1
    assert torch.allclose(fitted.readout.weight, factor * wanted, atol=1e-3 * float(wanted.abs().max()))
    assert fitted.held.equal(torch.cat(parts))


@pytest.mark.parametrize("out", [3, NARROW, 11])
def test_either_side_may_be_wider(out: int) -> None:
    x = drawn(0, 200, NARROW)
    z = x @ drawn(5, NARROW, out) + 1
    hidden = Hidden(x, 1)
    readout = fit_into(x, z, hidden).readout
    assert torch.allclose(readout(features(hidden, x)), z, atol=0.1)


def test_hidden_units_fit_a_bent_map_better() -> None:
    x, z = bent(1500)
    error = {}
    for units in (1, 300):
        fitted = fit_into(x, z, Hidden(x, units))
        error[units] = float((fitted.predicted - z[fitted.held]).square().mean())
    assert error[300] < 0.8 * error[1]
