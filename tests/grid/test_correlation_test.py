"""The test of two correlations, compared with its definition; how often it errs on simulated models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from false_alarms import Cell, Unlike, steiger_test
from numpy.typing import NDArray
from scipy import stats

from st_matryoshka2d.grid.significance import correlation_test
from tests.support.quick import quick

Row = NDArray[np.float64]


def correlation(gold: Row, values: Row, weights: Row, *, ranks: bool) -> float:
    """Pearson's or Spearman's correlation of weighted items."""
    if ranks:
        gold, values = (np.array([weights @ ((row < one) + (row == one) / 2) for one in row]) for row in (gold, values))
    table = np.cov(np.stack([gold, values]), aweights=weights, ddof=0)
    return float(table[0, 1] / math.sqrt(table[0, 0] * table[1, 1]))


def p_by_definition(gold: Row, a: Row, b: Row, *, ranks: bool) -> float:
    """Move the weight of each item by a little; subtract what pairs of items that change places count twice."""
    n, step = len(gold), 1e-4
    ones = np.ones(n)
    one, two = (correlation(gold, values, ones, ranks=ranks) for values in (a, b))
    influence = np.empty(n)
    for item in range(n):
        moved = [ones + sign * step * (np.arange(n) == item) for sign in (1, -1)]
        up, down = (
            correlation(gold, a, weights, ranks=ranks) - correlation(gold, b, weights, ranks=ranks) for weights in moved
        )
        influence[item] = n * (up - down) / (2 * step)
    variance = float(influence.var(ddof=1))
    if ranks:
        ranked = [stats.rankdata(row) for row in (gold, a, b)]
        twice = sum(
            (float(np.sign(a[i] - a[j]) - np.sign(b[i] - b[j])) / 2 * (ranked[0][i] - ranked[0][j])) ** 2
            for i in range(n)
            for j in range(i)
        )
        twice /= n * ranked[0].var() * ranked[1].std() * ranked[2].std()
        variance = max(variance - twice, variance / 2)
    freedom = min(n - 1, 2 * n / (stats.kurtosis(influence, fisher=False) - 1))
    return float(2 * stats.t.sf(abs(one - two) / math.sqrt(variance / n), freedom))


@pytest.mark.parametrize("ranks", [False, True])
@pytest.mark.parametrize("rounded", [False, True])
def test_p_is_that_of_the_definition(*, ranks: bool, rounded: bool) -> None:
    rng = np.random.default_rng(0)
    for own in (0.05, 0.5):
        rows = Cell("exp(0.8 s)", gold="six levels", rounded=rounded, own=own, gain=own / 2)(rng, 40)
        assert correlation_test(*rows, ranks=ranks) == pytest.approx(p_by_definition(*rows, ranks=ranks), rel=1e-4)
        assert correlation_test(rows[0], rows[2], rows[1], ranks=ranks) == correlation_test(*rows, ranks=ranks)


def rates(draw: Any, n: int, runs: int) -> tuple[float, float]:
    """How often this test and Steiger's find a difference between two Spearman correlations."""
    rng, found = np.random.default_rng(0), []
    for _ in range(runs):
        rows = draw(rng, n)
        (_, r1, r2), (_, _, r12), _ = np.corrcoef(stats.rankdata(rows, axis=1))
        found.append((correlation_test(*rows, ranks=True) < 0.05, steiger_test(r1, r2, r12, n, ranks=True) < 0.05))
    ours, steiger = np.mean(found, axis=0)
    return float(ours), float(steiger)


@pytest.mark.parametrize("own", [0.005, 0.3])
def test_false_alarms_where_errors_are_uneven(own: float) -> None:
    """Two models without a difference, whose errors grow with the gold score: expect at most 5 % with p < 0.05."""
    ours, steiger = rates(Cell("exp(0.8 s)", own=own), 150, 200)
    assert ours < 0.08, "three standard errors above 4 %"
    assert steiger > 0.08


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 300])
@pytest.mark.parametrize("own", [0.005, 0.05, 0.3])
def test_false_alarms(own: float, n: int) -> None:
    for cell in (Cell(own=own), Cell("0.2 + |s|", own=own), Cell(errors="skewed", own=own), Cell(rounded=True, own=own)):
        assert rates(cell, n, 500)[0] < 0.075, cell
    if own == 0.3:
        assert rates(Unlike("exp(0.8 s)").calibrated(), n, 500)[0] < 0.085


@pytest.mark.parametrize(("own", "gain"), quick([(0.005, 0.0025), (0.05, 0.014), (0.3, 0.08)], (0.005, 0.0025), (0.3, 0.08)))
def test_finds_as_much_as_steiger_where_errors_are_even(own: float, gain: float) -> None:
    ours, steiger = rates(Cell(own=own, gain=gain), 300, 100)
    assert 0.3 < steiger < 0.8
    assert ours > steiger - 0.1


@pytest.mark.parametrize("ranks", [False, True])
@pytest.mark.parametrize("gain", quick([0.0, 0.04, 0.08], 0.0, 0.08))
def test_agrees_with_a_permutation_test(gain: float, *, ranks: bool) -> None:
    """Under the null hypothesis, the two similarities of a pair are exchangeable."""
    rng = np.random.default_rng(0)
    gold, shared = rng.normal(size=(2, 400))
    values = gold * np.array([[1 + gain], [1]]) + shared * 0.5 + rng.normal(size=(2, 400)) * 0.3
    rows = np.stack([gold, *values])
    table = stats.rankdata(rows, axis=1) if ranks else rows
    truth, models = table[0] - table[0].mean(), table[1:]
    kept = rng.uniform(size=(2000, 400)) < 0.5
    first, second = (
        (z - z.mean(axis=1, keepdims=True)) @ truth / z.std(axis=1) / truth.std() / 400
        for z in (np.where(kept, *models), np.where(kept, *models[::-1]))
    )
    (_, r1, r2), *_ = np.corrcoef(table)
    p = np.mean(np.abs(first - second) >= abs(r1 - r2))
    assert correlation_test(*rows, ranks=ranks) == pytest.approx(p, abs=0.05)


RISING = np.arange(50.0)


@pytest.mark.parametrize("ranks", [False, True])
@pytest.mark.parametrize(
    ("gold", "a", "b", "p"),
    [
        (RISING, RISING, 2 * RISING + 1, 1.0),
        (RISING[1:], RISING[1:], -RISING[1:], 0.5**48),
        (RISING[1:5], RISING[1:5], -RISING[1:5], 0.5**3),  # four coins that agree
        (RISING[:3], RISING[:3], -RISING[:3], math.nan),
        (RISING, np.ones(50), RISING, math.nan),
        (np.ones(50), RISING, -RISING, math.nan),
        (RISING, RISING, np.where(RISING == 3, np.nan, RISING), math.nan),
    ],
)
def test_edge_cases(gold: Row, a: Row, b: Row, p: float, *, ranks: bool) -> None:
    assert correlation_test(gold, a, b, ranks=ranks) == pytest.approx(p, nan_ok=True)


def test_steiger_published_values() -> None:
    """What the benchmark compares with: depcor (Silver, Hittner and May, 2006), and Steiger's equations 10 and 14."""
    assert steiger_test(0.3, 0.4, 0.5, 100) == pytest.approx(0.2838, abs=5e-5)
    assert steiger_test(0.4, 0.5, 0.1, 103) == pytest.approx(2 * stats.norm.sf(0.8887185), rel=1e-6)
