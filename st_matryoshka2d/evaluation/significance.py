"""Significance tests of the difference between two models."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from st_matryoshka2d.evaluation.grid_io import Items


def paired_t_test(a: ArrayLike, b: ArrayLike) -> float:
    """Two-tailed paired Student's t-test: do two models differ on the same queries?"""
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"The test needs one number per model and item, got shapes {first.shape} and {second.shape}.")
    if len(first) < 2:
        return math.nan
    if np.array_equal(first, second):
        return 1.0
    # If all differences are equal, scipy warns and returns t = inf and p = 0, which is right.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        return float(stats.ttest_rel(first, second).pvalue)


def fisher_z_test(r1: float, r2: float, n1: int, n2: int) -> float:
    """Two-tailed test of two correlations of independent samples, by Fisher's r-to-z, as in Starbucks' Table 4."""
    _within(r1, r2)
    if min(n1, n2) <= 3:
        return math.nan
    return _two_tailed(r1, r2, 1 / (n1 - 3) + 1 / (n2 - 3))


def steiger_test(r1: float, r2: float, r12: float, n: int, *, ranks: bool = False) -> float:
    """Two-tailed test of two correlations with the same variable, in the same sample."""
    _within(r1, r2, r12)
    if 1 + 2 * r1 * r2 * r12 - r1**2 - r2**2 - r12**2 < -1e-9:
        raise ValueError(f"No three variables have the correlations {r1}, {r2} and, with each other, {r12}.")
    if n <= 3 or math.isnan(r12):
        return math.nan
    if r12 >= 1 or _same(r1, r2):
        return 1.0
    squared = ((r1 + r2) / 2) ** 2
    # Steiger's Z* (Psychological Bulletin 87, 1980, equation 14).
    # 2 - 2c, factored: equation 10 itself loses all digits if r12 is near 1, as it is for two sizes of one model.
    spread = (1 - r12) * max(0.0, 2 - squared * (3 - r12)) / (1 - squared) ** 2
    # Ranks vary more. Without Bonett and Wright's factor (Psychometrika 65, 2000), p < 0.05 occurs in 6 to 9 % by chance.
    return _two_tailed(r1, r2, spread * (1 + squared / 2 if ranks else 1) / (n - 3))


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


class ItemTest(NamedTuple):
    """The result of a test; `test` is its name, or `"none: "` and the reason if there was none."""

    test: str
    n: int = 0
    p_value: float = math.nan


def item_test(
    metric: str, scores: tuple[float, float], items: Items | None, other: Items | None, *, fisher: bool, where: object
) -> ItemTest:
    """Test the difference of two scores."""
    if items is None or other is None:
        return ItemTest("none: no items")
    other = _aligned(other, items, where)
    n = len(items.ids)
    if items.gold is None:
        found = items.values.mean(), other.values.mean()
        test = ItemTest("paired t", n, paired_t_test(items.values, other.values))
    elif (ranks := "spearman" in metric) or "pearson" in metric:
        rows = np.array([items.gold, items.values, other.values])
        with np.errstate(invalid="ignore", divide="ignore"):  # a constant has no correlation: NaN
            (_, r1, r2), (_, _, r12), _ = np.corrcoef(stats.rankdata(rows, axis=1) if ranks else rows).tolist()
        found = r1, r2
        p_value = fisher_z_test(r1, r2, n, n) if fisher else steiger_test(r1, r2, r12, n, ranks=ranks)
        test = ItemTest("Fisher" if fisher else "Steiger", n, p_value)
    else:
        return ItemTest("none: not a correlation")
    same = np.allclose(found, scores, rtol=0, atol=1e-4, equal_nan=True)  # mteb rounds some scores to five digits
    return test if same else ItemTest("none: items do not give the score")


def _aligned(other: Items, items: Items, where: object) -> Items:
    """Bring the items of the other grid into the order of the first."""
    if other.ids != items.ids:
        place = {name: index for index, name in enumerate(other.ids)}
        if alone := sorted(place.keys() ^ set(items.ids)):
            raise ValueError(
                f"{where}: the grids have different items, {len(items.ids)} and {len(other.ids)}; {alone[0]!r} is only in "
                "one of them. A test needs both models on the same data."
            )
        if not len(place) == len(items.ids) == len(other.ids):
            raise ValueError(f"{where}: the grids have the same ids in different orders, and some ids are repeated.")
        order = [place[name] for name in items.ids]
        other = Items(items.ids, other.values[order], None if other.gold is None else other.gold[order])
    if (items.gold is None) != (other.gold is None):
        raise ValueError(f"{where}: only one of the grids has gold scores.")
    one, two = (np.asarray(both.gold, dtype=float) for both in (other, items))  # NaN if there are none
    if not np.allclose(one, two, rtol=1e-6, atol=1e-9, equal_nan=True):
        raise ValueError(f"{where}: the grids have different gold scores. A test needs both models on the same data.")
    return other
