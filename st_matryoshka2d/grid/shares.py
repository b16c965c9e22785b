"""How sure a grid is of the share of the full score that each size keeps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from st_matryoshka2d.grid.bootstrap import resampled_scores
from st_matryoshka2d.grid.grid_data import Scores
from st_matryoshka2d.grid.grid_tables import Items, with_items
from st_matryoshka2d.grid.items import CLOSE, aligned, items_in, score_of
from st_matryoshka2d.grid.pivots import selected

# With fewer examples, intervals by resampling are too narrow: `benchmarks/proposals.py` has the simulation.
FEWEST = 30
LEVEL = 0.95

_PART = ["task", "split", "subset"]


class Bounds(NamedTuple):
    """Both ends of the interval of each share, and the number of examples in all and in the smallest task."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    examples: int
    fewest: int


class MissingExamplesError(LookupError):
    """A task has no scores by example, so that no interval is known."""


def add_intervals(
    table: pd.DataFrame,
    grid: Scores,
    cells: Sequence[str],
    task: str | None,
    whole: tuple[Scores, Any],
    metric: str | None = None,
) -> int:
    """Add the ends of the interval of each share to `table` and return the number of examples; refuse too few."""
    found = bounds(grid, table, cells, task, whole, metric)
    if found.fewest < FEWEST:
        raise ValueError(
            f"{found.fewest} examples cannot tell which size is good enough: shares of a score on so few are mostly chance. "
            f"Score at least {FEWEST} queries or pairs of each task, better some hundreds."
        )
    table["relative_low"], table["relative_high"] = found.low, found.high
    return found.examples


def bounds(
    grid: Scores,
    table: pd.DataFrame,
    cells: Sequence[str],
    task: str | None,
    whole: tuple[Scores, Any],
    metric: str | None = None,
) -> Bounds:
    """Return the interval of the share of each row of `table`, a result of `costs`.

    Args:
        grid: The grid.
        table: Its sizes, of which `cells` are the columns that tell them apart; NaN scores have no interval.
        cells: Names of columns.
        task: One task; None for the mean over tasks.
        whole: The grid of the score that shares refer to, and the row of `costs` with that score.
        metric: One metric; None for each task's main metric.

    Raises:
        MissingExamplesError: A task has no scores by example.
    """
    reference, full = whole
    scored = table["score"].notna().to_numpy()
    names = list(table.loc[scored, list(cells)].itertuples(index=False, name=None))
    of_full = [name for name in cells if name in full]
    ours, theirs = (_parts(*one, task, metric) for one in ((grid, cells), (reference, of_full)))
    full_name = tuple(full[of_full])
    rng, drawn, counts = np.random.default_rng(0), dict[str, list[NDArray[np.float64]]](), dict[str, int]()
    for part, found in ours.items():
        models = [_checked(found, name, part) for name in names]
        models.append(_checked(theirs.get(part, {}), full_name, part))
        models = [models[0], *(aligned(other, models[0], part[0]) for other in models[1:])]
        scored_by = str(found[names[0]]["metric"])
        drawn.setdefault(part[0], []).append(resampled_scores(models, scored_by, rng))
        counts[part[0]] = counts.get(part[0], 0) + len(models[0].ids)
    scores = np.mean([np.mean(parts, axis=0) for parts in drawn.values()], axis=0)
    low, high = (np.full(len(table), np.nan) for _ in range(2))
    low[scored], high[scored] = at_once(table["relative"].to_numpy(dtype=float)[scored], scores[:-1] / scores[-1])
    return Bounds(low, high, sum(counts.values()), min(counts.values()))


def at_once(shares: NDArray[np.float64], drawn: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return intervals whose lower ends hold for all shares at once, from resampled shares, shape (shares, draws).

    The choice among many sizes picks those that chance has favoured, so that an interval for one size would not do.
    """
    drawn = drawn[:, np.isfinite(drawn).all(axis=0)]  # a resample of equal gold scores has no correlation
    if drawn.shape[1] < 2:
        return np.full(len(shares), -np.inf), np.full(len(shares), np.inf)
    spread = drawn.std(axis=1)
    varies = spread > 1e-12  # not the share that a score is of itself
    off = (drawn - shares[:, None])[varies] / spread[varies, None]
    width = max(0.0, np.quantile(off.max(axis=0), LEVEL)) * spread if varies.any() else spread
    return shares - width, shares + width


def _parts(
    grid: Scores, cells: Sequence[str], task: str | None, metric: str | None
) -> dict[Any, dict[Any, Mapping[Hashable, Any]]]:
    """Return the rows of each task, split and subset, by the values of `cells`."""
    rows = with_items(selected(grid.frame, task, metric, free=cells), grid.items)
    found: dict[Any, dict[Any, Mapping[Hashable, Any]]] = {}
    for row in rows.to_dict("records"):
        found.setdefault(tuple(row[name] for name in _PART), {})[tuple(row[name] for name in cells)] = row
    return found


def _checked(rows: Mapping[Any, Mapping[Hashable, Any]], name: Any, part: tuple[str, ...]) -> Items:
    """Return the items of a size, if they give its score."""
    row = rows.get(name)
    items = None if row is None else items_in(row)
    if row is not None and items is not None:
        score = score_of(items, str(row["metric"]))
        if score is not None and abs(score - row["score"]) <= CLOSE:
            return items
    raise MissingExamplesError(part[0])
