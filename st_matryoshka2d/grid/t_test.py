"""Student's t-test of a mean over items, for two models that were scored on the same items."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

ROUNDING = 1e-12


def paired_t_test(a: ArrayLike, b: ArrayLike) -> float:
    """Two-tailed paired Student's t-test: do two models differ on the same queries?

    A few queries that change much, among many that change little, make t too large on one side. Johnson's t (1978), which
    adjusts for the skewness of the differences, is not too large there; p is the larger of both.
    """
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"The test needs one number per model and item, got shapes {first.shape} and {second.shape}.")
    if len(first) < 2:
        return math.nan
    difference, n = first - second, len(first)
    mean, variance = float(difference.mean()), float(difference.var(ddof=1))
    if variance <= 0:
        return t_test(mean, 0.0, n - 1, difference)
    third = float(np.mean((difference - mean) ** 3))
    adjusted = mean + third / variance * (1 / (6 * n) + mean**2 / (3 * variance))
    return max(t_test(value, variance / n, n - 1, difference) for value in (mean, adjusted))


def t_test(mean: float, variance: float, freedom: float, differences: NDArray[np.float64]) -> float:
    """Return p of Student's t; at least the chance that items which the models tell apart all point to the same model."""
    if abs(mean) < ROUNDING:
        return 1.0
    with np.errstate(divide="ignore"):
        t = np.abs(mean) / np.sqrt(variance)
    return float(np.maximum(2 * special.stdtr(freedom, -t), 0.5 ** (np.count_nonzero(differences) - 1.0)))
