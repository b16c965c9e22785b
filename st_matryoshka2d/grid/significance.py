"""Significance tests of the difference between two models."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from st_matryoshka2d.grid.correlation_test import correlation_test
from st_matryoshka2d.grid.grid_tables import Items
from st_matryoshka2d.grid.items import CLOSE, aligned, score_of, uses_ranks
from st_matryoshka2d.grid.t_test import paired_t_test


def fisher_z_test(r1: float, r2: float, n1: int, n2: int) -> float:
    """Two-tailed test of two correlations of independent samples, by Fisher's r-to-z, as in Starbucks' Table 4."""
    _within(r1, r2)
    if min(n1, n2) <= 3:
        return math.nan
    return _two_tailed(r1, r2, 1 / (n1 - 3) + 1 / (n2 - 3))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjust p-values for multiple tests by Holm's step-down method (Scandinavian Journal of Statistics 6, 1979)."""
    given = np.asarray(p_values, dtype=float)
    if given.ndim != 1 or (given < 0).any() or (given > 1).any():
        raise ValueError(f"Holm's method needs a list of p-values within 0..1, got {given}.")
    order = np.argsort(given)[: int(np.sum(~np.isnan(given)))]  # NaN is sorted last
    adjusted = np.full(given.shape, math.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(given[order] * np.arange(len(order), 0, -1)), 1)
    return adjusted


def _within(*correlations: float) -> None:
    if wrong := [r for r in correlations if abs(r) > 1]:
        raise ValueError(f"A correlation is within -1..1, got {wrong[0]}.")


def _same(r1: float, r2: float) -> bool:
    # Differences from rounding: near 1 they would become infinite differences of z.
    return math.isclose(r1, r2, rel_tol=0, abs_tol=1e-12)


def _two_tailed(r1: float, r2: float, variance: float) -> float:
    """Return p for the difference of two Fisher z values with this variance."""
    if _same(r1, r2):
        return 1.0
    with np.errstate(divide="ignore"):
        z = np.abs(np.arctanh(r1) - np.arctanh(r2)) / np.sqrt(variance)
    return float(2 * stats.norm.sf(z))


def p_text(p: float) -> str:
    """Write p with two digits; digits below 0.001 would claim more than the tests can know."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


class ItemTest(NamedTuple):
    """The result of a test; `test` is its name, or `"none: "` and the reason if there was none."""

    test: str
    n: int = 0
    p_value: float = math.nan


def item_test(
    metric: str, scores: tuple[float, float], items: Items | None, other: Items | None, *, fisher: bool, where: object
) -> ItemTest:
    """Test the difference of two scores."""
    if np.isnan(scores).any():
        return ItemTest("none: a score is NaN")
    if items is None or other is None:
        return ItemTest("none: no items")
    other = aligned(other, items, where)
    first, second, n = score_of(items, metric), score_of(other, metric), len(items.ids)
    if first is None or second is None:
        return ItemTest("none: not a correlation")
    if not np.allclose((first, second), scores, rtol=0, atol=CLOSE, equal_nan=True):
        return ItemTest("none: items do not give the score")
    if items.gold is None:
        return ItemTest("paired t", n, paired_t_test(items.values, other.values))
    if fisher:
        return ItemTest("Fisher", n, fisher_z_test(first, second, n, n))
    return ItemTest("jackknife", n, correlation_test(items.gold, items.values, other.values, ranks=uses_ranks(metric)))
