"""Calibration of what readouts predict, compared with a loop over texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from st_matryoshka2d.aligning.ridge import Affine, Fitted, calibrated

TEXTS, DIM = 30, 6


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fitted(x: Tensor) -> Fitted:
    readout = Affine(drawn(1, DIM, DIM), drawn(2, DIM))
    return Fitted(readout, torch.arange(len(x)), readout(x))


def slow(z: Tensor, predicted: Tensor) -> tuple[float, Tensor]:
    """Return s, and (k - s) times the mean of the predictions."""
    mean, true_mean = (sum(rows) / len(rows) for rows in (predicted, z))
    true = sum(float((row - true_mean) @ (row - true_mean)) for row in z)
    along = sum(float((row - true_mean) @ (guess - mean)) for row, guess in zip(z, predicted, strict=True))
    return true / along, (np.linalg.norm(true_mean) / np.linalg.norm(mean) - true / along) * mean


def test_calibration_follows_its_equation() -> None:
    x = drawn(0, TEXTS, DIM) + 1
    before = fitted(x)
    z = 1.3 * before.predicted + drawn(3, TEXTS, DIM)
    factor, moved = slow(z, before.predicted)
    after = calibrated(before, z)
    torch.testing.assert_close(after.predicted, factor * before.predicted + moved)
    torch.testing.assert_close(after.readout(x), after.predicted)
    far, true = after.predicted - after.predicted.mean(0), z - z.mean(0)
    assert float((far * true).sum() / true.square().sum()) == pytest.approx(1, abs=1e-5), "as large along the true ones"
    assert float(after.predicted.mean(0).norm()) == pytest.approx(float(z.mean(0).norm()), rel=1e-5)


def test_deviations_are_at_most_twice_as_large_as_the_true_ones() -> None:
    before = fitted(drawn(0, TEXTS, DIM))
    z = 0.1 * before.predicted + drawn(3, TEXTS, DIM)
    assert slow(z, before.predicted)[0] * (before.predicted - before.predicted.mean(0)).norm() > 2 * (z - z.mean(0)).norm()
    after = calibrated(before, z)
    assert float((after.predicted - after.predicted.mean(0)).norm() / (z - z.mean(0)).norm()) == pytest.approx(2, abs=1e-5)


def test_where_nothing_is_along_the_true_deviations_only_the_spread_counts() -> None:
    before = fitted(drawn(0, TEXTS, DIM))
    z = 3 - 2 * before.predicted
    after = calibrated(before, z)
    torch.testing.assert_close(after.readout.weight, 2 * before.readout.weight)


@pytest.mark.parametrize("predicted", ["constant", "zero", "varied"])
@pytest.mark.parametrize("true", ["constant", "zero", "varied"])
def test_constant_embeddings_give_finite_maps(predicted: str, true: str) -> None:
    rows = {"constant": torch.ones(TEXTS, DIM), "zero": torch.zeros(TEXTS, DIM), "varied": drawn(0, TEXTS, DIM)}
    after = calibrated(Fitted(Affine(torch.eye(DIM), torch.zeros(DIM)), torch.arange(TEXTS), rows[predicted]), rows[true])
    for values in (after.readout.weight, after.readout.bias, after.predicted):
        assert values.isfinite().all()
        assert values.abs().max() < 1e3
