"""How sure a grid is of the share of the full score that each size keeps, by resampling."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.grid.grid_data import Scores
from st_matryoshka2d.grid.grid_tables import Items, with_items
from st_matryoshka2d.grid.items import CLOSE, FEWEST, aligned, items_in, score_of, uses_ranks
from st_matryoshka2d.grid.pivots import selected

Rows = NDArray[np.float64]

LEVEL, DRAWS = 0.95, 1000
_AT_ONCE = 3_000_000  # examples times draws in memory, for each of a few arrays


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
    """Add the ends of each share's interval to `table`, and return the number of examples.

    `table` is a result of `costs`, `cells` are the columns that tell its sizes apart, and `whole`
    is the grid of the score that shares refer to, with its row of `costs`. Sizes without a score
    have no interval. A task without examples raises a MissingExamplesError.
    """
    reference, full = whole
    scored = table["score"].notna().to_numpy()
    names = [*table.loc[scored, list(cells)].itertuples(index=False, name=None)]
    of_full = [name for name in cells if name in full]
    theirs = _rows(reference, of_full, task, metric)
    rng, counts = np.random.default_rng(0), Counter[str]()
    drawn = defaultdict[str, list[Rows]](list)
    for part, rows in _rows(grid, cells, task, metric).items():
        models = [_items(rows.get(name), part) for name in names]
        models.append(_items(theirs.get(part, {}).get(tuple(full[of_full])), part))
        models = [aligned(model, models[0], part[0]) for model in models]
        drawn[part[0]].append(resampled_scores(models, str(rows[names[0]]["metric"]), rng))
        counts[part[0]] += len(models[0].ids)
    if (fewest := min(counts.values())) < FEWEST:
        raise UsageError(
            f"{fewest} examples cannot tell which size is good enough: "
            "shares of a score on so few are mostly chance. "
            f"Score at least {FEWEST} queries or pairs of each task, better some hundreds."
        )
    scores = np.mean([np.mean(parts, axis=0) for parts in drawn.values()], axis=0)
    table["relative_low"] = table["relative_high"] = np.nan
    ends = at_once(table.loc[scored, "relative"].to_numpy(dtype=float), scores[:-1] / scores[-1])
    table.loc[scored, ["relative_low", "relative_high"]] = np.transpose(ends)
    return counts.total()


def at_once(shares: Rows, drawn: Rows) -> tuple[Rows, Rows]:
    """Return intervals whose lower ends hold for all shares at once, from (shares, draws).

    The choice among many sizes picks those that chance has favoured, so that an interval for one
    size would not do.
    """
    drawn = drawn[:, np.isfinite(drawn).all(axis=0)]  # equal gold scores have no correlation
    if drawn.shape[1] < 2:
        return np.full(len(shares), -np.inf), np.full(len(shares), np.inf)
    spread = drawn.std(axis=1)
    varies = spread > 1e-12  # not the share that a score is of itself
    off = (drawn - shares[:, None])[varies] / spread[varies, None]
    width = max(0.0, np.quantile(off.max(axis=0), LEVEL)) * spread if varies.any() else spread
    return shares - width, shares + width


def resampled_scores(models: Sequence[Items], metric: str, rng: np.random.Generator) -> Rows:
    """Return scores, shape (models, draws), on the same resamples of the models' examples."""
    n, gold, blocks = len(models[0].ids), models[0].gold, []
    for first in range(0, DRAWS, step := max(1, _AT_ONCE // n)):
        draws = min(step, DRAWS - first)
        places = rng.integers(n, size=(n, draws)) * draws + np.arange(draws)
        counts = np.bincount(places.ravel(), minlength=n * draws).reshape(n, draws).astype(float)
        if gold is None:
            blocks.append(np.stack([model.values for model in models]) @ counts / n)
            continue
        truth = _centred(gold, counts, metric)
        weighted, spread = counts * truth, np.sqrt((counts * truth**2).sum(axis=0))
        values = (_centred(model.values, counts, metric) for model in models)
        with np.errstate(invalid="ignore"):  # a constant has no correlation: NaN
            scores = [(weighted * row).sum(0) / np.sqrt((counts * row**2).sum(0)) for row in values]
        blocks.append(np.array(scores) / spread)
    return np.concatenate(blocks, axis=1)


def _centred(values: Rows, counts: Rows, metric: str) -> Rows:
    """Return what a correlation correlates, minus its mean, for each example and resample."""
    if not uses_ranks(metric):
        return values[:, None] - values @ counts / len(counts)
    group = np.unique(values, return_inverse=True)[1]
    first = np.unique(np.sort(values), return_index=True)[1]
    equal = np.add.reduceat(counts[np.argsort(values)], first)
    return (np.cumsum(equal, axis=0) - equal / 2 - len(values) / 2)[group]


def _rows(
    grid: Scores, cells: Sequence[str], task: str | None, metric: str | None
) -> dict[tuple[str, ...], dict[tuple[Any, ...], Mapping[Hashable, Any]]]:
    """Return the rows of each task, split and subset, by the values of `cells`."""
    rows = with_items(selected(grid.frame, task, metric, free=cells), grid.items)
    parts = defaultdict[tuple[str, ...], dict[tuple[Any, ...], Mapping[Hashable, Any]]](dict)
    for row in rows.to_dict("records"):
        parts[row["task"], row["split"], row["subset"]][tuple(row[name] for name in cells)] = row
    return parts


def _items(row: Mapping[Hashable, Any] | None, part: tuple[str, ...]) -> Items:
    """Return the items of a size, if they give its score."""
    items = None if row is None else items_in(row)
    score = None if row is None or items is None else score_of(items, str(row["metric"]))
    if row is None or items is None or score is None or not abs(score - row["score"]) <= CLOSE:
        raise MissingExamplesError(part[0])
    return items
