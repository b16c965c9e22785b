"""The examples behind a score: in one order for two grids, and the score that they give."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.grid.grid_tables import Items

CLOSE = 1e-4  # mteb rounds some scores to five digits
# on fewer examples, scores are mostly chance: `benchmarks/proposals.py` and `false_alarms.py`
# simulate it
FEWEST = 30


def items_in(row: Mapping[Hashable, Any], prefix: str = "") -> Items | None:
    """Read the items in a row of `with_items`; cells without any are None or NaN."""
    ids, values, gold = (row[prefix + name] for name in Items._fields)
    if ids is None or isinstance(ids, float):
        return None
    gold = None if gold is None or isinstance(gold, float) else np.asarray(gold, dtype=float)
    return Items(list(ids), np.asarray(values, dtype=float), gold)


def uses_ranks(metric: str) -> bool:
    """Whether a metric is Spearman's correlation, rather than Pearson's or a mean over queries."""
    return "spearman" in metric


def score_of(items: Items, metric: str) -> float | None:
    """Compute the score from its items: a mean or a correlation; None for other metrics of pairs."""
    if items.gold is None:
        return float(items.values.mean())
    if not (uses_ranks(metric) or "pearson" in metric):
        return None
    rows = ranked(np.array([items.gold, items.values]), metric)
    if (np.ptp(rows, axis=1) == 0).any():
        return math.nan  # a constant has no correlation
    return float(stats.pearsonr(*rows).statistic)


def ranked(rows: NDArray[np.float64], metric: str) -> NDArray[np.float64]:
    """Return what a correlation correlates: ranks for Spearman's."""
    return stats.rankdata(rows, axis=1) if uses_ranks(metric) else rows


def aligned(other: Items, items: Items, where: object) -> Items:
    """Bring the items of the other grid into the order of the first."""
    if other.ids != items.ids:
        place = {name: index for index, name in enumerate(other.ids)}
        if alone := sorted(place.keys() ^ set(items.ids)):
            raise UsageError(
                f"{where}: the grids have different items, {len(items.ids)} and {len(other.ids)}; {alone[0]!r} is only in "
                "one of them. Both models must be scored on the same data."
            )
        if not len(place) == len(items.ids) == len(other.ids):
            raise UsageError(f"{where}: the grids have the same ids in different orders, and some ids are repeated.")
        order = [place[name] for name in items.ids]
        other = Items(items.ids, other.values[order], None if other.gold is None else other.gold[order])
    if (items.gold is None) != (other.gold is None):
        raise UsageError(f"{where}: only one of the grids has gold scores.")
    # NaN if there are none
    gold, other_gold = (np.asarray(scored.gold, dtype=float) for scored in (items, other))
    if not np.allclose(other_gold, gold, rtol=1e-6, atol=1e-9, equal_nan=True):
        raise UsageError(f"{where}: the grids have different gold scores. Both models must be scored on the same data.")
    return other
