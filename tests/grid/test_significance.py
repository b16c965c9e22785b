"""Significance tests, compared with published numbers, definitions and simulated models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from false_alarms import Cell, steiger_test
from numpy.typing import NDArray
from scipy import stats

from st_matryoshka2d.grid.significance import correlation_test, fisher_z_test, holm, paired_t_test
from tests.support.quick import quick

# Starbucks (arXiv:2410.13230), Table 4: Spearman on the STS sets, a star where p < 0.05 against the
# last line of a size.
PAIRS = [1379, 3108, 1500, 3750, 3000, 1186, 9927]


TABLE_4 = [
    """0.6021* 0.4478* 0.5881* 0.5230* 0.6599* 0.6455* 0.6083*
    0.7399* 0.6882* 0.7387* 0.6800* 0.7819* 0.7419* 0.7579*
    0.7311* 0.6364* 0.6977* 0.6551* 0.7637* 0.7312* 0.7323*
    0.7621* 0.7126 0.7400* 0.6900* 0.7924* 0.7613 0.7678
    0.7933 0.7296 0.7824 0.7444 0.8308 0.7840 0.7700""",
    """0.6433* 0.5121* 0.6370* 0.5712* 0.7062* 0.6737* 0.6504*
    0.8174 0.7304 0.8097 0.7588 0.8289* 0.7998 0.7807
    0.7721* 0.6635* 0.7400* 0.6756* 0.7949* 0.7570* 0.7774
    0.8112 0.7310 0.7925 0.7397* 0.8246* 0.7959 0.7879
    0.8278 0.7382 0.8033 0.7736 0.8469 0.8092 0.7874""",
    """0.8411 0.7413 0.8319* 0.7902 0.8521 0.8151 0.7949*
    0.8196 0.7414 0.8087 0.7616 0.8417 0.8017 0.7986*
    0.8258 0.7456 0.8185 0.7752 0.8474 0.8059 0.7889
    0.8274 0.7404 0.7998 0.7789 0.8497 0.8131 0.7844""",
]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("size", TABLE_4, ids=["Short", "Grande", "Trenta"])
def test_fisher_gives_the_stars_of_starbucks(size: str) -> None:
    *methods, starbucks = [line.split() for line in size.splitlines()]
    for method in methods:
        for score, best, n in zip(method, starbucks, PAIRS, strict=True):
            p = fisher_z_test(float(score.rstrip("*")), float(best), n, n)
            assert (p < 0.05) == score.endswith("*"), (score, best, n, p)


def test_published_values() -> None:
    # Cohen, Cohen, West and Aiken (2003), 2.8.11; the spreadsheet of stat-help.com; as in the tests
    # of the R package cocor
    assert fisher_z_test(0.657, 0.430, 62, 143) == pytest.approx(2 * stats.norm.sf(2.110737), rel=1e-5)
    assert fisher_z_test(0.4, 0.5, 100, 100) == pytest.approx(0.3815188256, abs=1e-9)


def test_the_t_test_is_that_of_the_differences(rng: np.random.Generator) -> None:
    a = rng.uniform(size=40)
    b = a + rng.normal(0.02, 0.1, size=40)
    d = [float(x - y) for x, y in zip(a, b, strict=True)]
    mean = sum(d) / 40
    variance, third = sum((x - mean) ** 2 for x in d) / 39, sum((x - mean) ** 3 for x in d) / 40
    johnson = mean + third / (6 * variance * 40) + third * mean**2 / (3 * variance**2)
    smaller = min(abs(mean), abs(johnson)) / math.sqrt(variance / 40)
    assert paired_t_test(a, b) == pytest.approx(2 * stats.t.sf(smaller, df=39), rel=1e-10)
    assert paired_t_test(a, b) == pytest.approx(paired_t_test(b, a), rel=1e-12)
    assert paired_t_test(a, b + 100) == 2**-39, "the chance that forty coins agree"


def test_few_queries_that_differ_are_no_evidence(rng: np.random.Generator) -> None:
    """Five queries that all favour one model are as likely by chance as five coins that agree: p is at least 1/16."""
    for differ in range(1, 9):
        for n in (differ, 20, 300):
            a = np.zeros(n)
            a[:differ] = 0.5
            assert paired_t_test(a, np.zeros(n)) >= 2 ** (1 - differ) or n == 1
    for share, n in ((0.05, 100), (0.1, 50), (0.3, 20)):
        drawn = np.where(rng.uniform(size=(1000, n)) < share, rng.choice([-1.0, 1.0], size=(1000, n)), 0)
        assert np.mean([paired_t_test(differences, np.zeros(n)) < 0.05 for differences in drawn]) < 0.04


def test_a_few_queries_that_are_much_worse_are_no_evidence(rng: np.random.Generator) -> None:
    """The means are equal: a tenth lose nine times what the others gain."""
    drawn = np.where(rng.uniform(size=(3000, 50)) < 0.1, -0.9, 0.1) + rng.normal(0, 0.05, size=(3000, 50))
    assert np.mean(stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05) > 0.065
    assert np.mean([paired_t_test(differences, np.zeros(50)) < 0.05 for differences in drawn]) < 0.04


@pytest.mark.parametrize(
    ("call", "p"),
    [
        (lambda: fisher_z_test(1.0, 1.0, 50, 50), 1.0),
        (lambda: fisher_z_test(1.0, 0.9, 50, 50), 0.0),
        (lambda: fisher_z_test(0.5, 0.6, 50, 3), math.nan),
        (lambda: fisher_z_test(0.5, math.nan, 50, 50), math.nan),
        (lambda: paired_t_test([0.2, 0.3], [0.2, 0.3]), 1.0),
        (lambda: paired_t_test([0.75, 0.5, 1.0], [0.25, 0.0, 0.5]), 0.25),  # three coins that agree
        (lambda: paired_t_test([0.2], [0.3]), math.nan),
        (lambda: paired_t_test([0.2, math.nan, 0.1], [0.3, 0.1, 0.1]), math.nan),
    ],
)
def test_edge_cases(call, p: float) -> None:
    assert call() == pytest.approx(p, nan_ok=True)


def rejected(p_values: list[float], alpha: float) -> set[int]:
    """Holm's procedure: from the smallest p on, reject while p <= alpha / (tests left)."""
    left = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    smallest: set[int] = set()
    while left and left[0][0] <= alpha / len(left):
        smallest.add(left.pop(0)[1])
    return smallest


def test_holm_rejects_what_the_procedure_does(rng: np.random.Generator) -> None:
    for _ in range(300):
        # some are equal
        p_values = [float(p) for p in np.round(rng.uniform(size=rng.integers(1, 12)) ** 3, 2)]
        p_values = [math.nan if rng.uniform() < 0.2 else p for p in p_values]
        adjusted = holm(p_values)
        assert [math.isnan(p) for p in adjusted] == [math.isnan(p) for p in p_values]
        for alpha in rng.uniform(0, 0.3, size=5):
            assert {index for index, p in enumerate(adjusted) if p <= alpha} == rejected(p_values, alpha)
    assert holm([]).shape == (0,)
    assert holm([0.4, 0.6, 0.5]).max() == 1


Row = NDArray[np.float64]


def correlation(gold: Row, values: Row, weights: Row, *, ranks: bool) -> float:
    """Pearson's or Spearman's correlation of weighted items."""
    if ranks:
        gold, values = (
            np.array([weights @ ((row < value) + (row == value) / 2) for value in row]) for row in (gold, values)
        )
    table = np.cov(np.stack([gold, values]), aweights=weights, ddof=0)
    return float(table[0, 1] / math.sqrt(table[0, 0] * table[1, 1]))


def p_by_definition(gold: Row, a: Row, b: Row, *, ranks: bool) -> float:
    """Move the weight of each item by a little; subtract what pairs of items that change places count twice."""
    n, step = len(gold), 1e-4
    ones = np.ones(n)
    first, second = (correlation(gold, values, ones, ranks=ranks) for values in (a, b))
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
    return float(2 * stats.t.sf(abs(first - second) / math.sqrt(variance / n), freedom))


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
    rng, alarms = np.random.default_rng(0), []
    for _ in range(runs):
        rows = draw(rng, n)
        (_, r1, r2), (_, _, r12), _ = np.corrcoef(stats.rankdata(rows, axis=1))
        alarms.append((correlation_test(*rows, ranks=True) < 0.05, steiger_test(r1, r2, r12, n, ranks=True) < 0.05))
    ours, steiger = np.mean(alarms, axis=0)
    return float(ours), float(steiger)


@pytest.mark.parametrize("own", [0.005, 0.3])
def test_false_alarms_where_errors_are_uneven(own: float) -> None:
    """Two models without a difference, whose errors grow with the gold score: expect at most 5 % with p < 0.05."""
    ours, steiger = rates(Cell("exp(0.8 s)", own=own), 150, 200)
    assert ours < 0.08, "three standard errors above 4 %"
    assert steiger > 0.08


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
    as_they_are = rng.uniform(size=(2000, 400)) < 0.5
    first, second = (
        (z - z.mean(axis=1, keepdims=True)) @ truth / z.std(axis=1) / truth.std() / 400
        for z in (np.where(as_they_are, *models), np.where(as_they_are, *models[::-1]))
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
def test_edge_cases_of_correlations(gold: Row, a: Row, b: Row, p: float, *, ranks: bool) -> None:
    assert correlation_test(gold, a, b, ranks=ranks) == pytest.approx(p, nan_ok=True)


def test_steiger_published_values() -> None:
    """What the benchmark compares with: depcor (Silver, Hittner and May, 2006), and Steiger's equations 10 and 14."""
    assert steiger_test(0.3, 0.4, 0.5, 100) == pytest.approx(0.2838, abs=5e-5)
    assert steiger_test(0.4, 0.5, 0.1, 103) == pytest.approx(2 * stats.norm.sf(0.8887185), rel=1e-6)
