"""Significance tests of the difference between two models."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Row = NDArray[np.float64]

_ROUNDING = 1e-12
_AT_ONCE = 500_000  # pairs of items in memory


def holm(p_values: ArrayLike) -> Row:
    """Adjust p-values by Holm's step-down method (Scandinavian Journal of Statistics 6, 1979)."""
    given = np.asarray(p_values, dtype=float)
    order = np.argsort(given)[: np.count_nonzero(~np.isnan(given))]  # NaN is sorted last
    adjusted = np.full(len(given), math.nan)
    steps = given[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


def fisher_z_test(r1: float, r2: float, n1: int, n2: int) -> float:
    """Test two correlations of independent samples by Fisher's r-to-z, as in Starbucks' Table 4."""
    if min(n1, n2) <= 3:
        return math.nan
    if abs(r1 - r2) < _ROUNDING:  # near 1, it would become an infinite difference of z
        return 1.0
    with np.errstate(divide="ignore"):
        z = abs(np.arctanh(r1) - np.arctanh(r2)) / math.sqrt(1 / (n1 - 3) + 1 / (n2 - 3))
    return float(2 * stats.norm.sf(z))


def paired_t_test(a: ArrayLike, b: ArrayLike) -> float:
    """Two-tailed paired Student's t-test: do two models differ on the same queries?

    A few queries that change much, among many that change little, make t too large on one side.
    Johnson's t (1978), which adjusts for the skewness of the differences, is not too large there; p
    is the larger of both.
    """
    difference = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    if (n := len(difference)) < 2:
        return math.nan
    mean, variance = difference.mean(), difference.var(ddof=1)
    skewed = 0.0
    if variance > 0:
        third = np.mean((difference - mean) ** 3)
        skewed = third / variance * (1 / (6 * n) + mean**2 / (3 * variance))
    means = mean, mean + skewed
    return max(_students_p(value, variance / n, n - 1, difference) for value in means)


def _students_p(mean: float, variance: float, freedom: float, differences: Row) -> float:
    """Return p of Student's t; at least the chance that all items that differ favour one model."""
    if abs(mean) < _ROUNDING:
        return 1.0
    with np.errstate(divide="ignore"):
        p = 2 * stats.t.sf(np.abs(mean) / np.sqrt(variance), freedom)
    return float(np.maximum(p, 0.5 ** (np.count_nonzero(differences) - 1.0)))


def correlation_test(gold: ArrayLike, a: ArrayLike, b: ArrayLike, *, ranks: bool = False) -> float:
    """Test two correlations with the same gold scores: Pearson's, or Spearman's with `ranks`.

    The errors of the models may be spread unevenly over the pairs: the variance is that of the
    pairs' influence on the difference, the infinitesimal jackknife. Its degrees of freedom are
    those of a variance with the kurtosis of the sample.
    """
    rows = np.array([gold, a, b], dtype=float)
    n = rows.shape[1]
    if n <= 3 or not np.isfinite(rows).all() or (np.ptp(rows, axis=1) == 0).any():
        return math.nan
    values = stats.rankdata(rows, axis=1) / n if ranks else rows
    of_models = ([0, 1], [0, 2])
    (r1, first), (r2, second) = (_influence(rows[of], values[of], ranks=ranks) for of in of_models)
    influence = first - second
    variance, kurtosis = influence.var(ddof=1), 1.0
    if ranks:
        # The jackknife counts twice what only two items together change (Efron and Stein, Annals
        # of Statistics 9, 1981): two items whose order differs between the models. Between two
        # sizes of one model, that may be nearly all.
        swapped = _swapped(values[1], values[2], stats.zscore(values[0]))
        variance = max(variance - swapped / n**3 / np.prod(values[1:].std(axis=1)), variance / 2)
    if variance > 0:
        kurtosis = stats.kurtosis(influence, fisher=False)
    freedom = min(n - 1.0, 2 * n / (kurtosis - 1)) if kurtosis > 1 else n - 1.0
    return _students_p(r1 - r2, variance / n, freedom, values[1] - values[2])


def _influence(rows: Row, values: Row, *, ranks: bool) -> tuple[float, Row]:
    """Return the correlation of the values of two rows, and how far each item moves it."""
    x, y = stats.zscore(values, axis=1)
    r = float(np.mean(x * y))
    influence = x * y - r * (x**2 + y**2) / 2
    if ranks:  # an item also moves the ranks of all others
        by_x, by_y = _mean_above(rows[0], y - r * x), _mean_above(rows[1], x - r * y)
        influence = influence + by_x / values[0].std() + by_y / values[1].std()
    return r, influence


def _mean_above(values: Row, weights: Row) -> Row:
    """Sum the weights of the items above each item, and half of those beside it, over n."""
    group = np.unique(values, return_inverse=True)[1]
    sums = np.bincount(group, weights)
    return (sums[::-1].cumsum()[::-1] - sums / 2)[group] / len(values)


def _swapped(a: Row, b: Row, weights: Row) -> float:
    """Sum squared differences of weights over pairs that two rankings swap; ties are a quarter."""
    n, total = len(weights), 0.0
    first, second, weight = (row.astype(np.float32) for row in (a, b, weights))
    for rows in np.array_split(np.arange(n), n * n // _AT_ONCE + 1):
        swapped = np.sign(first[rows, None] - first) - np.sign(second[rows, None] - second)
        swapped *= weight[rows, None] - weight
        total += float(np.vdot(swapped, swapped))
    return total / 8  # each pair comes twice, and a swap is two signs apart
