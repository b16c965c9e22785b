"""The maps into another space, compared with scikit-learn's ridge regression on the same features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import Ridge
from torch import Tensor

from st_matryoshka2d.aligning import into
from st_matryoshka2d.aligning.into import Hidden, Sums, _Regression, fit_into
from st_matryoshka2d.aligning.ridge import left_out

DIM = 6


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(texts: int, out: int = DIM) -> tuple[Tensor, Tensor]:
    """Embeddings, and what a bent map makes of them, with a mean and noise."""
    x = drawn(0, texts, DIM) + 0.5
    return x, torch.tanh(x @ drawn(1, DIM, out)) + 0.1 * drawn(2, texts, out) + 2


def features(hidden: Hidden, x: Tensor) -> Tensor:
    return hidden(x).detach()


def test_features_contain_the_embedding() -> None:
    x, _ = made(50)
    hidden, weight = Hidden(x, 5), drawn(3, 4, DIM)
    mapped = features(hidden, x) @ hidden.of_linear(weight).T
    offset = mapped - x @ weight.T
    assert torch.allclose(offset, offset[:1].expand_as(offset), atol=1e-5)


@pytest.mark.parametrize("units", [1, 9])
@pytest.mark.parametrize("strength", [3.0, 0.01])
def test_a_map_is_the_ridge_regression_of_what_the_rotation_leaves(units: int, strength: float) -> None:
    x, z = made(300)
    hidden = Hidden(x, units)
    found = _Regression(Sums.of(x, z, hidden), hidden).map(strength)
    far_x, far_z = (x - x.mean(0)).double().numpy(), (z - z.mean(0)).double().numpy()
    rotation, total = orthogonal_procrustes(far_x, far_z)
    turned = total / (far_x**2).sum() * far_x @ rotation
    penalty = strength * (far_x**2).mean() * len(x)
    rest = Ridge(alpha=penalty).fit(features(hidden, x).double().numpy(), far_z - turned)
    new = drawn(4, 20, DIM)
    turned = total / (far_x**2).sum() * (new - x.mean(0)).double().numpy() @ rotation
    expected = turned + rest.predict(features(hidden, new).double().numpy()) + z.mean(0).double().numpy()
    np.testing.assert_allclose(found(features(hidden, new)), expected, atol=2e-5)


@pytest.mark.parametrize("texts", [200, 2400])
def test_the_strength_is_the_best_on_texts_left_out_and_the_map_is_fitted_on_all(texts: int) -> None:
    x, z = made(texts)
    hidden, parts = Hidden(x, 40), left_out(texts)
    errors = []
    for strength in into._STRENGTHS:
        found = []
        for part in parts:
            seen = torch.ones(texts, dtype=torch.bool)
            seen[part] = False
            readout = _Regression(Sums.of(x[seen], z[seen], hidden), hidden).map(strength)
            found.append(readout(features(hidden, x[part])))
        errors.append(float((torch.cat(found) - z[torch.cat(parts)]).square().sum()))
    best = into._STRENGTHS[int(np.argmin(errors))]
    fitted = fit_into(x, z, hidden)
    # The spread is given back along one line, so deviations stay in proportion.
    expected = _Regression(Sums.of(x, z, hidden), hidden).map(best).weight
    factor = float((fitted.readout.weight / expected).median())
    assert factor > 1
    assert torch.allclose(fitted.readout.weight, factor * expected, atol=1e-3 * float(expected.abs().max()))
    assert fitted.held.equal(torch.cat(parts))


@pytest.mark.parametrize("out", [3, DIM, 11])
def test_either_side_may_be_wider(out: int) -> None:
    x = drawn(0, 200, DIM)
    z = x @ drawn(5, DIM, out) + 1
    hidden = Hidden(x, 1)
    readout = fit_into(x, z, hidden).readout
    assert torch.allclose(readout(features(hidden, x)), z, atol=0.1)


def test_hidden_units_fit_a_bent_map_better() -> None:
    x, z = made(1500)
    error = {}
    for units in (1, 300):
        fitted = fit_into(x, z, Hidden(x, units))
        error[units] = float((fitted.predicted - z[fitted.held]).square().mean())
    assert error[300] < 0.8 * error[1]


def test_sums_do_not_depend_on_how_texts_are_split() -> None:
    x, z = made(90)
    hidden = Hidden(x, 4)
    whole, part = Sums.of(x, z, hidden), Sums.of(x[:30], z[:30], hidden)
    rest = whole - part
    assert torch.allclose(rest.fz, features(hidden, x[30:]).T.double() @ z[30:].double(), atol=1e-4)
    assert float(rest.count) == 60
