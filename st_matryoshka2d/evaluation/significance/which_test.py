"""Which test a cell of two grids gets, on items that are the same in both."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from st_matryoshka2d.evaluation.significance.tests import fisher_z_test, paired_t_test, steiger_test

__all__ = ["CellTest", "Items", "cell_test"]

# mteb rounds some scores to five digits.
_TOLERANCE = 1e-4


class Items(NamedTuple):
    """What a main score is made of; see `GridResult`."""

    ids: list[str]
    values: NDArray[np.float64]
    gold: NDArray[np.float64] | None


class CellTest(NamedTuple):
    """A test that was made, or `"none: "` and why not."""

    test: str
    n: int = 0
    p_value: float = math.nan


def cell_test(
    metric: str, scores: tuple[float, float], items: Items | None, other: Items | None, *, fisher: bool, where: object
) -> CellTest:
    """Test the difference of two scores.

    A test is of the mean or the correlation of the items; where that is not the score, there is no test.

    Args:
        metric: Name of the main metric: a correlation has `spearman` or `pearson` in it.
        scores: The score of the first grid and that of the other.
        items: Items of the first; None where it has none.
        other: Items of the other.
        fisher: Whether correlations are tested as if of independent samples.
        where: The cell, for errors.

    Raises:
        ValueError: The two have different items, or different gold scores.
    """
    if items is None or other is None:
        return CellTest("none: no items")
    other = _aligned(other, items, where)
    n = len(items.ids)
    if items.gold is None:
        found = (items.values.mean(), other.values.mean())
        test = CellTest("paired t", n, paired_t_test(items.values, other.values))
    elif (ranks := "spearman" in metric) or "pearson" in metric:
        r1, r2, r12 = _correlations(items.gold, items.values, other.values, ranks=ranks)
        found = (r1, r2)
        p_value = fisher_z_test(r1, r2, n, n) if fisher else steiger_test(r1, r2, r12, n, ranks=ranks)
        test = CellTest("Fisher" if fisher else "Steiger", n, p_value)
    else:
        return CellTest("none: not a correlation")
    same = np.allclose(found, scores, rtol=0, atol=_TOLERANCE, equal_nan=True)
    return test if same else CellTest("none: items do not give the score")


def _aligned(other: Items, items: Items, where: object) -> Items:
    """The other's items in the order of the first's."""
    if other.ids != items.ids:
        place = {name: index for index, name in enumerate(other.ids)}
        if alone := sorted(place.keys() ^ set(items.ids)):
            raise ValueError(
                f"{where}: the grids have different items, {len(items.ids)} and {len(other.ids)}; {alone[0]!r} is in one of "
                "them alone. A test needs both models on the same data."
            )
        if not len(place) == len(items.ids) == len(other.ids):
            raise ValueError(f"{where}: the grids have the same ids in different orders, and some more than once.")
        order = [place[name] for name in items.ids]
        other = Items(items.ids, other.values[order], None if other.gold is None else other.gold[order])
    if items.gold is None and other.gold is None:
        return other
    if items.gold is None or other.gold is None:
        raise ValueError(f"{where}: the items of one grid have gold scores and those of the other have none.")
    if not np.allclose(items.gold, other.gold, rtol=1e-6, atol=1e-9, equal_nan=True):
        raise ValueError(f"{where}: the grids have different gold scores. A test needs both models on the same data.")
    return other


def _correlations(*variables: NDArray[np.float64], ranks: bool) -> tuple[float, float, float]:
    """Of the first with the second, of the first with the third, of the second with the third."""
    rows = [stats.rankdata(variable) if ranks else variable for variable in variables]
    with np.errstate(invalid="ignore", divide="ignore"):  # a constant has none: NaN
        table = np.corrcoef(rows)
    return float(table[0, 1]), float(table[0, 2]), float(table[1, 2])
