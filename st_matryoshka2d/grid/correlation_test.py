"""A test of two correlations with the same gold scores that needs no even errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from st_matryoshka2d.grid.t_test import t_test


def correlation_test(gold: ArrayLike, a: ArrayLike, b: ArrayLike, *, ranks: bool = False) -> float:
    """Two-tailed test of two correlations with the same gold scores: Pearson's, or Spearman's with `ranks`.

    The errors of the models may be spread unevenly over the pairs: the variance is that of the pairs' influence on the
    difference, the infinitesimal jackknife. Its degrees of freedom are those of a variance with the kurtosis of the sample.
    """
    rows = np.array([gold, a, b], dtype=float)
    n = rows.shape[1]
    if n <= 3 or not np.isfinite(rows).all() or (np.ptp(rows, axis=1) == 0).any():
        return math.nan
    values = stats.rankdata(rows, axis=1) / n if ranks else rows
    (r1, one), (r2, two) = (_influence(rows[[0, model]], values[[0, model]], ranks=ranks) for model in (1, 2))
    influence = one - two - np.mean(one - two)
    variance, squares = float(influence.var(ddof=1)), influence**2
    if ranks:
        # The jackknife counts twice what only two items together change (Efron and Stein, Annals of Statistics 9, 1981):
        # two items whose order differs between the models. Between two sizes of one model, that may be nearly all.
        twice = _swapped(rows[1], rows[2], _standardised(values[0])) / (n**3 * float(np.prod(values[1:].std(axis=1))))
        variance = max(variance - max(twice, 0.0), variance / 2)
    kurtosis = float(np.mean(squares**2) / np.mean(squares) ** 2) if variance > 0 else 1.0
    freedom = min(n - 1.0, 2 * n / (kurtosis - 1)) if kurtosis > 1 else n - 1.0
    return t_test(r1 - r2, variance / n, freedom, values[1] - values[2])


def _influence(rows: NDArray[np.float64], values: NDArray[np.float64], *, ranks: bool) -> tuple[float, NDArray[np.float64]]:
    """Return the correlation of two rows, and how far each item moves it; `values` are what is correlated."""
    x, y = map(_standardised, values)
    r = float(np.mean(x * y))
    influence = x * y - r * (x**2 + y**2) / 2
    if ranks:  # an item also moves the ranks of all others
        by_x, by_y = _mean_above(rows[0], y - r * x), _mean_above(rows[1], x - r * y)
        influence = influence + by_x / values[0].std() + by_y / values[1].std()
    return r, influence


def _standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    standardised: NDArray[np.float64] = (values - values.mean()) / values.std()
    return standardised


def _mean_above(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each item: the weights of all items with a larger value, and half of those with an equal one, over n."""
    group = np.unique(values, return_inverse=True)[1]
    sums = np.bincount(group, weights)
    return (sums[::-1].cumsum()[::-1] - sums / 2)[group] / len(values)


def _swapped(first: NDArray[np.float64], second: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Sum of squared differences of weights over all pairs that two rankings order differently; ties count as a quarter."""
    order = np.lexsort((second, first))
    groups, place = [np.unique(values, return_inverse=True)[1] for values in (first, second)], np.arange(len(order))
    weight, rank = weights[order], groups[1][order]
    powers = np.stack([np.ones(len(order)), weight, weight**2])
    total, width = 0.0, 1
    while width < len(order):  # a merge sort: items pass those of the right half that the second ranking has before them
        merged = np.lexsort((rank, place // (2 * width)))
        right = merged // width % 2
        passed = np.cumsum(powers[:, merged] * right, axis=1)
        start = place // (2 * width) * (2 * width)
        count, sums, squares = passed - np.where(start > 0, passed[:, start - 1], 0)
        one = weight[merged]
        total += float(np.sum((count * one**2 - 2 * one * sums + squares) * (1 - right)))
        width *= 2
    both = groups[0] * len(order) + groups[1]
    return total + (_tied(groups[0], weights) + _tied(groups[1], weights) - 2 * _tied(both, weights)) / 4


def _tied(values: NDArray[Any], weights: NDArray[np.float64]) -> float:
    """Sum of squared differences of weights over all pairs with equal values."""
    group = np.unique(values, return_inverse=True)[1]
    count, sums, squares = (np.bincount(group, weights**power) for power in range(3))
    return float(np.sum(count * squares - sums**2))
