"""Compare two grids size by size, with significance tests."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.grid import pivots
from st_matryoshka2d.grid.comparison import GridComparison
from st_matryoshka2d.grid.grid_data import Scores
from st_matryoshka2d.grid.grid_tables import axis_labels, with_items
from st_matryoshka2d.grid.items import CLOSE, FEWEST, aligned, items_in, score_of, uses_ranks
from st_matryoshka2d.grid.significance import correlation_test, fisher_z_test, holm, paired_t_test
from st_matryoshka2d.sizes import Size

_PART = ["task", "split", "subset"]
_PLACE = [*_PART, "num_layers", "dim"]


def compare(
    grid: Scores,
    other: Scores,
    metric: str | None = None,
    *,
    test: str = "auto",
    alpha: float = 0.05,
    correction: str | None = "holm",
) -> GridComparison:
    """Compare the scores of two grids by one metric, or their main scores, at the sizes that both have."""
    if not isinstance(other, Scores):
        raise UsageTypeError(f"A grid can only be compared with another GridResult, got {type(other).__name__}.")
    if test not in ("auto", "fisher"):
        raise UsageError(f"test must be 'auto' or 'fisher', got {test!r}.")
    if correction not in ("holm", None):
        raise UsageError(f"correction must be 'holm' or None, got {correction!r}.")
    if not 0 < alpha < 1:
        raise UsageError(f"alpha must be between 0 and 1, got {alpha!r}.")
    first, second = grid.plain(), other.plain()
    two_sizes = len(first.sizes) == len(second.sizes) == 1 and first.sizes != second.sizes
    names = _names(first, second, with_size=two_sizes)
    if two_sizes:  # relabel the second grid, so that its size can be compared with the other size
        size = {"num_layers": first.sizes[0].num_layers, "dim": first.sizes[0].dim}
        second = replace(second, frame=second.frame.assign(**size), items=second.items.assign(**size), latency=None)
    joined = _joined(first, second, metric)
    tests = pd.DataFrame([_tested(row, fisher=test == "fisher") for row in joined.to_dict("records")])
    frame = joined[[*_PLACE, "metric", "score", "other_score"]]
    frame = frame.assign(delta=frame["score"] - frame["other_score"]).join(tests)
    adjusted = holm(frame["p_value"]) if correction else frame["p_value"].to_numpy()
    return GridComparison(frame.assign(p_adjusted=adjusted, significant=adjusted < alpha), names, alpha, correction)


def _joined(grid: Scores, other: Scores, metric: str | None) -> pd.DataFrame:
    """Join the scores of both grids, with their items, at their common sizes; `other_` is the second grid."""
    ours, theirs = (with_items(pivots.of_metric(scores.frame, metric), scores.items) for scores in (grid, other))
    _same(ours, theirs, ["task"], " Compare the tasks of both, `grid.at(tasks=...)`.")
    _same(ours, theirs, [*_PART, "metric"])
    keys = [*_PLACE, "metric"]
    table = ours.merge(theirs.set_index(keys).add_prefix("other_").reset_index(), on=keys)
    if table.empty:
        first, second = (", ".join(map(str, scores.sizes)) for scores in (grid, other))
        raise UsageError(f"The grids have no size in common: the first has {first}, the other {second}.")
    return table


class _Test(NamedTuple):
    test: str
    n: int = 0
    p_value: float = math.nan


def _tested(row: Mapping[Hashable, Any], *, fisher: bool) -> _Test:
    """Test the difference of the scores in a row of `_joined`."""
    metric, given = row["metric"], (row["score"], row["other_score"])
    items, other = items_in(row), items_in(row, "other_")
    if np.isnan(given).any():
        return _Test("none: a score is NaN")
    if items is None or other is None:
        return _Test("none: no items")
    size = Size(row["num_layers"], row["dim"])
    other = aligned(other, items, f"{row['task']} ({row['split']}, {row['subset']}) at {size}")
    first, second, n = score_of(items, metric), score_of(other, metric), len(items.ids)
    if n < FEWEST:
        return _Test("none: too few examples", n)
    if first is None or second is None:
        return _Test("none: not a correlation", n)
    if not np.allclose((first, second), given, rtol=0, atol=CLOSE, equal_nan=True):
        return _Test("none: items do not give the score", n)
    if items.gold is None:
        return _Test("paired t", n, paired_t_test(items.values, other.values))
    if fisher:
        return _Test("Fisher", n, fisher_z_test(first, second, n, n))
    ranks = uses_ranks(metric)
    return _Test("jackknife", n, correlation_test(items.gold, items.values, other.values, ranks=ranks))


def _names(grid: Scores, other: Scores, *, with_size: bool) -> tuple[str, str]:
    """Choose different names for the two grids: model, what else differs, size, or "first" and "other"."""
    axes = [pivots.shown(scores.frame) for scores in (grid, other)]

    def name(scores: Scores) -> str:
        labels = [pivots.called(scores.model), *([] if axes[0] == axes[1] else axis_labels(pivots.shown(scores.frame)))]
        return " ".join([*labels, str(scores.sizes[0])] if with_size else labels).strip()

    first, second = name(grid), name(other)
    if first == second:
        first, second = f"{first} (first)" if first else "", f"{second} (other)" if second else ""
    return first or "first", second or "other"


def _same(ours: pd.DataFrame, theirs: pd.DataFrame, columns: list[str], hint: str = "") -> None:
    """Refuse tables of which one has a place that the other lacks."""
    first, second = (set(table[columns].itertuples(index=False, name=None)) for table in (ours, theirs))
    if alone := sorted(first ^ second):
        place = "first" if alone[0] in first else "other"
        what = ", ".join(f"{column} {value}" for column, value in zip(columns, alone[0], strict=True))
        raise UsageError(f"The grids were not scored on the same data: only the {place} has {what}.{hint}")
