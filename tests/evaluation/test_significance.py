"""Significance tests, compared with published numbers and formulas; error rates on simulated models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from st_matryoshka2d.evaluation.significance import fisher_z_test, holm, paired_t_test, steiger_test

# Starbucks (arXiv:2410.13230), Table 4: Spearman on the STS sets, a star where p < 0.05 against the last line of a size.
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
    # Cohen, Cohen, West and Aiken (2003), 2.8.11; the spreadsheet of stat-help.com; as in the tests of the R package cocor
    assert fisher_z_test(0.657, 0.430, 62, 143) == pytest.approx(2 * stats.norm.sf(2.110737), rel=1e-5)
    assert fisher_z_test(0.4, 0.5, 100, 100) == pytest.approx(0.3815188256, abs=1e-9)
    # depcor (Silver, Hittner and May, 2006): z = -1.0718, p = 0.2838. Steiger (1980, p. 249, case A) has -0.89.
    assert steiger_test(0.3, 0.4, 0.5, 100) == pytest.approx(0.2838, abs=5e-5)
    assert steiger_test(0.4, 0.5, 0.1, 103) == pytest.approx(2 * stats.norm.sf(0.8887185), rel=1e-6)


def test_the_t_test_is_that_of_the_differences(rng: np.random.Generator) -> None:
    a = rng.uniform(size=40)
    b = a + rng.normal(0.02, 0.1, size=40)
    d = [float(x - y) for x, y in zip(a, b, strict=True)]
    mean = sum(d) / 40
    t = mean / math.sqrt(sum((x - mean) ** 2 for x in d) / 39 / 40)
    assert paired_t_test(a, b) == pytest.approx(2 * stats.t.sf(abs(t), df=39), rel=1e-10)
    assert paired_t_test(a, b) == pytest.approx(paired_t_test(b, a), rel=1e-12)
    assert paired_t_test(a, b + 100) < 1e-50


def equation(r1: float, r2: float, r12: float, n: int, *, ranks: bool) -> float:
    """Steiger's equations 10 and 14 as printed."""
    r = (r1 + r2) / 2
    c = (r12 * (1 - 2 * r**2) - 0.5 * r**2 * (1 - 2 * r**2 - r12**2)) / (1 - r**2) ** 2
    z = (math.atanh(r1) - math.atanh(r2)) * math.sqrt(n - 3) / math.sqrt(2 - 2 * c)
    return float(2 * stats.norm.sf(abs(z) / math.sqrt(1 + r**2 / 2) if ranks else abs(z)))


def williams(r1: float, r2: float, r12: float, n: int) -> float:
    """Williams' T2 (Steiger's equation 7), a test without Fisher's z."""
    determinant = 1 - r1**2 - r2**2 - r12**2 + 2 * r1 * r2 * r12
    below = 2 * (n - 1) / (n - 3) * determinant + ((r1 + r2) / 2) ** 2 * (1 - r12) ** 3
    return float(2 * stats.t.sf(abs(r1 - r2) * math.sqrt((n - 1) * (1 + r12) / below), n - 3))


def test_steiger_is_the_equation_and_near_williams(rng: np.random.Generator) -> None:
    for _ in range(200):
        gold, shared = rng.normal(size=(2, 300))
        first, second = (gold * rng.uniform(-1, 3) + shared + rng.normal(size=300) * 0.3 for _ in range(2))
        (_, r1, r2), (_, _, r12), _ = np.corrcoef([gold, first, second])
        p = steiger_test(r1, r2, r12, 300)
        assert p == pytest.approx(equation(r1, r2, r12, 300, ranks=False), rel=1e-6)
        assert steiger_test(r1, r2, r12, 300, ranks=True) == pytest.approx(equation(r1, r2, r12, 300, ranks=True), rel=1e-6)
        assert p == pytest.approx(williams(r1, r2, r12, 300), abs=0.01)
        assert p == steiger_test(r2, r1, r12, 300)


def test_steiger_keeps_its_digits_where_two_models_are_almost_one() -> None:
    for off in (1e-6, 1e-9, 1e-12, 1e-14):
        r2, r12 = 0.8 - math.sqrt(off) / 20, 1 - off
        # equation 10 to the first order of 1 - r12: 1 - c = (1 - r12) / (1 - r^2)
        z = math.sqrt(997) * (math.atanh(0.8) - math.atanh(r2)) / math.sqrt(2 * (1 - r12) / 0.36)
        assert steiger_test(0.8, r2, r12, 1000) == pytest.approx(2 * stats.norm.sf(z), rel=1e-3)


def correlations(draw: NDArray[np.float64], *, ranks: bool) -> tuple[float, float, float]:
    table = np.corrcoef(stats.rankdata(draw, axis=1) if ranks else draw)
    return float(table[0, 1]), float(table[0, 2]), float(table[1, 2])


def test_false_positive_rate(rng: np.random.Generator) -> None:
    """Two models with a true correlation of 0.8, as similar as two sizes of a model: expect 5 % with p < 0.05."""
    half = np.linalg.cholesky(np.array([[1, 0.8, 0.8], [0.8, 1, 0.92], [0.8, 0.92, 1]]))
    draws = half @ rng.normal(size=(2500, 3, 120))
    plain = [correlations(draw, ranks=False) for draw in draws]
    ranks = [correlations(draw, ranks=True) for draw in draws]
    assert np.mean([steiger_test(*r, 120) < 0.05 for r in plain]) == pytest.approx(0.05, abs=0.013)  # 3 standard errors
    assert np.mean([fisher_z_test(r1, r2, 120, 120) < 0.05 for r1, r2, _ in plain]) < 0.002
    assert 0.02 < np.mean([steiger_test(*r, 120, ranks=True) < 0.05 for r in ranks]) < 0.05
    assert np.mean([steiger_test(*r, 120) < 0.05 for r in ranks]) > 0.055  # the reason for the factor for ranks


@pytest.mark.parametrize("ranks", [False, True])
@pytest.mark.parametrize("gain", [0.0, 0.04, 0.08])
def test_steiger_agrees_with_a_permutation_test(rng: np.random.Generator, gain: float, *, ranks: bool) -> None:
    """Under the null hypothesis, the two similarities of a pair are exchangeable."""
    gold, shared = rng.normal(size=(2, 400))
    values = gold * np.array([[1 + gain], [1]]) + shared * 0.5 + rng.normal(size=(2, 400)) * 0.3
    r1, r2, r12 = correlations(np.stack([gold, *values]), ranks=ranks)
    if ranks:
        gold, values = stats.rankdata(gold), stats.rankdata(values, axis=1)
    kept = rng.uniform(size=(2000, 400)) < 0.5
    first, second = (
        (z - z.mean(axis=1, keepdims=True)) @ (gold - gold.mean()) / z.std(axis=1) / gold.std() / 400
        for z in (np.where(kept, *values), np.where(kept, *values[::-1]))
    )
    p = np.mean(np.abs(first - second) >= abs(r1 - r2))
    assert steiger_test(r1, r2, r12, 400, ranks=ranks) == pytest.approx(p, abs=0.04)


@pytest.mark.parametrize(
    ("call", "p"),
    [
        (lambda: steiger_test(0.7, 0.7, 0.9, 50), 1.0),
        (lambda: steiger_test(0.7, 0.7 + 1e-15, 1.0, 50), 1.0),  # equal similarities up to rounding
        (lambda: steiger_test(1.0, 1.0 - 1e-15, 1.0 - 1e-15, 50), 1.0),
        (lambda: steiger_test(-1.0, -1.0, 1.0, 50), 1.0),
        (lambda: steiger_test(1.0, 0.9, 0.9, 50), 0.0),
        (lambda: steiger_test(1.0, -1.0, -1.0, 50), 0.0),
        (lambda: steiger_test(0.7, 0.6, 0.9, 3), math.nan),
        (lambda: steiger_test(math.nan, 0.6, 0.9, 50), math.nan),
        (lambda: steiger_test(0.7, 0.6, math.nan, 50), math.nan),
        (lambda: fisher_z_test(1.0, 1.0, 50, 50), 1.0),
        (lambda: fisher_z_test(1.0, 0.9, 50, 50), 0.0),
        (lambda: fisher_z_test(0.5, 0.6, 50, 3), math.nan),
        (lambda: fisher_z_test(0.5, math.nan, 50, 50), math.nan),
        (lambda: paired_t_test([0.2, 0.3], [0.2, 0.3]), 1.0),
        (lambda: paired_t_test([0.75, 0.5, 1.0], [0.25, 0.0, 0.5]), 0.0),
        (lambda: paired_t_test([0.2], [0.3]), math.nan),
        (lambda: paired_t_test([0.2, math.nan, 0.1], [0.3, 0.1, 0.1]), math.nan),
    ],
)
def test_edge_cases(call, p: float) -> None:
    assert call() == pytest.approx(p, nan_ok=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: steiger_test(0.9, -0.9, 0.9, 50), "No three variables"),
        (lambda: steiger_test(0.9, 1.2, 0.9, 50), "within -1..1, got 1.2"),
        (lambda: fisher_z_test(78.5, 77.1, 50, 50), "within -1..1, got 78.5"),
        (lambda: paired_t_test([0.1, 0.2], [0.1]), r"got shapes \(2,\) and \(1,\)"),
        (lambda: holm([0.1, 1.5]), "within 0..1"),
        (lambda: holm([[0.1]]), "a list of p-values"),
    ],
)
def test_refuses_invalid_inputs(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def rejected(p_values: list[float], alpha: float) -> set[int]:
    """Holm's procedure: from the smallest p on, reject while p <= alpha / (tests left)."""
    left = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    found: set[int] = set()
    while left and left[0][0] <= alpha / len(left):
        found.add(left.pop(0)[1])
    return found


def test_holm_rejects_what_the_procedure_does(rng: np.random.Generator) -> None:
    for _ in range(300):
        p_values = [float(p) for p in np.round(rng.uniform(size=rng.integers(1, 12)) ** 3, 2)]  # some are equal
        p_values = [math.nan if rng.uniform() < 0.2 else p for p in p_values]
        adjusted = holm(p_values)
        assert [math.isnan(p) for p in adjusted] == [math.isnan(p) for p in p_values]
        for alpha in rng.uniform(0, 0.3, size=5):
            assert {index for index, p in enumerate(adjusted) if p <= alpha} == rejected(p_values, alpha)
    assert holm([]).shape == (0,)
    assert holm([0.4, 0.6, 0.5]).max() == 1
