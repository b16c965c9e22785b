"""Student's t-test of a mean over items, for two models that were scored on the same items."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

ROUNDING = 1e-12


def paired_t_test(a: ArrayLike, b: ArrayLike) -> float:
    """Two-tailed paired Student's t-test: do two models differ on the same queries?"""
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"The test needs one number per model and item, got shapes {first.shape} and {second.shape}.")
    if len(first) < 2:
        return math.nan
    difference = first - second
    return t_test(float(difference.mean()), float(difference.var(ddof=1)) / len(first), len(first) - 1, difference)


def t_test(mean: float, variance: float, freedom: float, differences: NDArray[np.float64]) -> float:
    """Return p of Student's t; at least the chance that items which the models tell apart all point to the same model."""
    if abs(mean) < ROUNDING:
        return 1.0
    with np.errstate(divide="ignore"):
        t = np.abs(mean) / np.sqrt(variance)
    return float(np.maximum(2 * special.stdtr(freedom, -t), 0.5 ** (np.count_nonzero(differences) - 1.0)))
