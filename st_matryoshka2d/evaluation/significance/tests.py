"""Is a difference between two models more than chance: the tests, on numbers alone."""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

__all__ = ["fisher_z_test", "holm", "paired_t_test", "steiger_test"]


def paired_t_test(a: ArrayLike, b: ArrayLike) -> float:
    """Two-tailed paired Student's t-test: do two models differ on the same queries?

    The test of the retrieval columns of Starbucks' Table 4 (arXiv:2410.13230, A.1).

    Args:
        a: (items,), what one model scores at each item.
        b: (items,), what the other scores at the same items.

    Returns:
        p; 1 where the two are the same at every item, NaN where there are less than two items or one is NaN.

    Raises:
        ValueError: The two are not of the same length.

    Example:
        >>> round(paired_t_test([0.9, 0.5, 0.7, 0.6], [0.6, 0.4, 0.5, 0.5]), 4)
        0.0354
    """
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"The test needs a number of each model for each item, got {first.shape} and {second.shape}.")
    if len(first) < 2:
        return math.nan
    if np.array_equal(first, second):
        return 1.0
    with warnings.catch_warnings():
        # Where all differences are equal, scipy warns and gives t = inf, p = 0, which is right.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="scipy")
        return float(stats.ttest_rel(first, second).pvalue)


def fisher_z_test(r1: float, r2: float, n1: int, n2: int) -> float:
    r"""Two-tailed test of two correlations of independent samples, by Fisher's r-to-z.

    $$z = \frac{\operatorname{artanh} r_1 - \operatorname{artanh} r_2}{\sqrt{1 / (n_1 - 3) + 1 / (n_2 - 3)}}$$

    The test of the STS columns of Starbucks' Table 4 (arXiv:2410.13230, A.1). Two models that score the same pairs are
    not independent samples; `steiger_test` is for them.

    Args:
        r1: One correlation.
        r2: The other.
        n1: How many pairs the first was computed from.
        n2: How many pairs the second was computed from.

    Returns:
        p; 1 where the correlations are equal, 0 where just one is 1 or -1, whose z is infinite; NaN where a correlation is
        NaN or there are not more than three pairs.

    Raises:
        ValueError: A correlation is not within -1..1.

    Example:
        BERT-2DMSE and Starbucks on the 1379 pairs of STS-B: no star for Demi, one for Short.

        >>> round(fisher_z_test(0.7197, 0.7455, 1379, 1379), 4), round(fisher_z_test(0.7311, 0.7933, 1379, 1379), 4)
        (0.1438, 0.0001)
    """
    _within(r1, r2)
    if min(n1, n2) <= 3:
        return math.nan
    return _two_tailed(r1, r2, 1 / (n1 - 3) + 1 / (n2 - 3))


def steiger_test(r1: float, r2: float, r12: float, n: int, *, ranks: bool = False) -> float:
    r"""Two-tailed test of two correlations with the same variable, in the same sample.

    It is the test for two models scored on the same pairs: both similarities are correlated with one gold score, and with
    each other. Fisher's z takes the two correlations for those of independent samples. What makes a pair hard is mostly the
    same for both models, so their correlations err together and their difference varies much less than Fisher's z assumes:
    it is too conservative, and misses differences that are there.

    Steiger's $\bar Z_1^*$ (Psychological Bulletin 87, 1980, equation 14) is Fisher's z with that covariance, $c$, taken off:

    $$z = \frac{(\operatorname{artanh} r_1 - \operatorname{artanh} r_2) \sqrt{n - 3}}{\sqrt{2 - 2c}}, \quad
    c = \frac{r_{12} (1 - 2 \bar r^2) - \frac12 \bar r^2 (1 - 2 \bar r^2 - r_{12}^2)}{(1 - \bar r^2)^2}, \quad
    \bar r = \frac{r_1 + r_2}2$$

    Spearman's correlation is Pearson's of the ranks, and the usual approximation is to test it as such, $r_{12}$ being
    Spearman's too (Myers and Sirois, 2006). But z then varies more: at p < 0.05 the test would find a difference in 6 to 9 %
    of draws from normal variables that have none, with correlations of 0.8 or 0.9. So with `ranks` the variance has the
    factor $1 + \bar r^2 / 2$ of Bonett and Wright (Psychometrika 65, 2000), and it is 3 to 5 %.

    Args:
        r1: Correlation of the first model's similarities with the gold scores.
        r2: Correlation of the second model's similarities with the gold scores.
        r12: Correlation of the similarities of the two models.
        n: How many pairs all three were computed from.
        ranks: Whether they are Spearman's.

    Returns:
        p; 1 where `r1` and `r2` are equal or `r12` is 1 (the same similarities, or the same ranks); 0 where just one of `r1`
        and `r2` is 1 or -1, whose z is infinite; NaN where a correlation is NaN or there are not more than three pairs.

    Raises:
        ValueError: A correlation is not within -1..1, or no three variables have these three.

    Example:
        Two models with 0.80 and 0.81 on 1379 pairs that rank these pairs almost alike:

        >>> round(steiger_test(0.80, 0.81, 0.98, 1379, ranks=True), 4), round(fisher_z_test(0.80, 0.81, 1379, 1379), 4)
        (0.0061, 0.4561)
    """
    _within(r1, r2, r12)
    if 1 + 2 * r1 * r2 * r12 - r1**2 - r2**2 - r12**2 < -1e-9:
        raise ValueError(f"No three variables have the correlations {r1}, {r2} and, with each other, {r12}.")
    if n <= 3 or math.isnan(r12):
        return math.nan
    if r12 >= 1 or _same(r1, r2):
        return 1.0
    squared = ((r1 + r2) / 2) ** 2
    # 2 - 2c in factors: the fraction of equation 10 loses all digits where r12 is near 1, as for two sizes of one model.
    spread = (1 - r12) * max(0.0, 2 - squared * (3 - r12)) / (1 - squared) ** 2
    return _two_tailed(r1, r2, spread * (1 + squared / 2 if ranks else 1) / (n - 3))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """p-values adjusted for being many, by Holm's step-down method (Scandinavian Journal of Statistics 6, 1979).

    The chance that any of the true null hypotheses has an adjusted p below alpha is at most alpha, however the tests depend
    on each other; those of the sizes of one model do.

    Args:
        p_values: (tests,). NaN is a test that was not made: it stays NaN and does not count.

    Returns:
        (tests,), each the largest $(m - j) p_{(j)}$ up to its own place in ascending order (j from 0), at most 1.

    Raises:
        ValueError: They are not in one row, or not within 0..1.

    Example:
        >>> holm([0.01, float("nan"), 0.04, 0.03])
        array([0.03,  nan, 0.06, 0.06])
    """
    given = np.asarray(p_values, dtype=float)
    if given.ndim != 1 or (given < 0).any() or (given > 1).any():
        raise ValueError(f"Holm's method needs p-values in one row, each within 0..1, got {given}.")
    order = np.argsort(given)[: int(np.sum(~np.isnan(given)))]  # NaN is sorted last
    adjusted = np.full(given.shape, math.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(given[order] * np.arange(len(order), 0, -1)), 1)
    return adjusted


def _within(*correlations: float) -> None:
    if wrong := [r for r in correlations if abs(r) > 1]:
        raise ValueError(f"A correlation is within -1..1, got {wrong[0]}.")


def _same(r1: float, r2: float) -> bool:
    # Rounding alone: next to 1 it would be an infinite difference of z.
    return math.isclose(r1, r2, rel_tol=0, abs_tol=1e-12)


def _two_tailed(r1: float, r2: float, variance: float) -> float:
    """The p of the difference of two z of Fisher's, which has this variance."""
    if _same(r1, r2):
        return 1.0
    with np.errstate(divide="ignore"):
        z = np.abs(np.arctanh(r1) - np.arctanh(r2)) / np.sqrt(variance)
    return float(2 * stats.norm.sf(z))
