"""Compare two grids size by size, with significance tests."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.grid import pivots
from st_matryoshka2d.grid.grid_data import Scores
from st_matryoshka2d.grid.grid_tables import AXES, axis_labels, with_items
from st_matryoshka2d.grid.items import CLOSE, FEWEST, aligned, items_in, score_of, uses_ranks
from st_matryoshka2d.grid.significance import correlation_test, fisher_z_test, holm, paired_t_test
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PART, _SIZE = ["task", "split", "subset"], ["num_layers", "dim"]
_PLACE = [*_PART, *_SIZE]


@dataclass(frozen=True, eq=False, repr=False)
class GridComparison:
    """Differences between the scores of two grids, with significance tests; made by `GridResult.compare`.

    Printing it shows the pivot in points (hundredths). A `*` marks a significant difference. Means
    over several tests are not tested themselves: `(5/7)` means that 5 of 7 tests are significant
    with the sign of the mean, and `(5:1/7)` that one more is significant with the other sign. A `?`
    marks a difference, or a mean of differences, that was not tested; `to_frame()["test"]` has the
    reason.

    Args:
        frame: One row for each task, split, subset and size; see `to_frame`.
        names: Names of the two grids; differences are the first minus the second.
        alpha: Significance level for the adjusted p.
        correction: `"holm"`, over all tests in `frame`, or None if p was not adjusted.
    """

    frame: pd.DataFrame
    names: tuple[str, str]
    alpha: float
    correction: str | None

    def to_frame(self) -> pd.DataFrame:
        """A copy of the tidy table.

        Columns are `task`, `split`, `subset`, `num_layers`, `dim`, `metric`, `score`,
        `other_score`, `delta`, `test` (its name, or `"none: "` and the reason), `n` (queries or
        pairs), `p_value`, `p_adjusted` and `significant`.
        """
        return self.frame.copy()

    def pivot(self, task: str | None = None) -> pd.DataFrame:
        """Differences by layers (rows) and dims (columns), in mteb's units, averaged as in `GridResult.pivot`.

        Args:
            task: Name of one task; None for the mean over tasks.
        """
        return pivots.pivot(self.frame.assign(score=self.frame["delta"], is_main=True, **AXES), task)

    def plot(
        self, path: str | os.PathLike[str] | None = None, title: str | None = None, *, task: str | None = None
    ) -> Figure:
        """Plot a heat map of the pivot, in points, marked as when printed; blue if the first grid is better.

        Only cells with a significant difference have a colour: of several tests, most with the sign
        of the mean. On fewer than 30 examples, no cell has one.

        Args:
            path: File to save the figure to, as `.png`, `.svg` or `.pdf`; None to only return it.
            title: Title; None for the name of the task.
            task: As for `pivot`.
        """
        # imports matplotlib, which reading results does not need
        from st_matryoshka2d.plots.heat_map import delta_map
        from st_matryoshka2d.plots.saving import saved

        title = title if title is not None else self._subject(task)
        note = f"{self._minus(task)}, blue if above 0, grey if not significant. {self._note(task)}"
        deltas = (self.pivot(task) * 100).where(self._claimed(task))
        return saved(path, lambda: delta_map(deltas, self._texts(task, "\n{}"), title, note))

    @property
    def examples(self) -> dict[str, int]:
        """The number of queries or pairs of each task; 0 where a task has no scores by example."""
        parts = self.frame.groupby(_PART, sort=False)["n"].max()
        return {str(task): int(n) for task, n in parts.groupby("task", sort=False).sum().items()}

    def _claimed(self, task: str | None) -> pd.DataFrame:
        """Mark the cells whose difference most tests find significant, on enough examples."""
        means = self.pivot(task)
        rows = self._rows(task).join(pd.Series(means.stack(), name="mean"), on=_SIZE)
        sure = rows["significant"] & (rows["delta"] * rows["mean"] > 0)
        marks: pd.DataFrame = rows.assign(sure=sure).pivot_table(index="num_layers", columns="dim", values="sure") > 0.5
        return marks.reindex_like(means).fillna(value=False).astype(bool)

    def __str__(self) -> str:
        title = f"{self._subject()}: {self._minus()}, points"
        return "\n".join([title, pivots.table_text(self._texts()), self._note()])

    __repr__ = __str__

    def _rows(self, task: str | None) -> pd.DataFrame:
        return self.frame if task is None else self.frame[self.frame["task"] == task]

    def _subject(self, task: str | None = None) -> str:
        return pivots.subject(list(self._rows(task)["task"].unique()))

    def _minus(self, task: str | None = None) -> str:
        return f"{pivots.metric_name(self.frame.assign(is_main=True), task)}, {' minus '.join(self.names)}"

    def _texts(self, task: str | None = None, counts: str = " ({})") -> pd.DataFrame:
        deltas, rows = self.pivot(task) * 100, self._rows(task)
        texts = pd.DataFrame("", index=deltas.index, columns=deltas.columns)
        for _, cell in rows.groupby(_SIZE):
            if cell["task"].nunique() == rows["task"].nunique():
                layers, dim = cell[_SIZE].iloc[0]
                delta = deltas[dim][layers]
                texts.at[layers, dim] = "nan" if np.isnan(delta) else f"{delta:+z.2f}{_mark(cell, delta, counts)}"
        return texts

    def _note(self, task: str | None = None) -> str:
        """Explain the marks, and count the examples."""
        counts = {name: n for name, n in self.examples.items() if task in (None, name)}
        return " ".join([self._marks(task), *pivots.counts_note(counts)])

    def _marks(self, task: str | None) -> str:
        rows = self._rows(task)
        tested, untested = rows[rows["p_value"].notna()], rows[rows["p_value"].isna()]
        reasons = untested["test"].unique()
        why = ", ".join(r.removeprefix("none: ") if r.startswith("none: ") else f"{r} gives no p" for r in reasons)
        if tested.empty:
            return f"? Not tested ({why})."
        mark = f"* p < {self.alpha:g}"
        if rows.groupby(_SIZE).size().max() > 1:
            mark = f"k/m: k of m tests have p < {self.alpha:g} and the sign of the mean"
            mark += ", k:l/m: and l the other sign" if ":" in "".join(self._texts(task, "{}").to_numpy().ravel()) else ""
        if len(tested) == 1:
            p = tested["p_adjusted"].item()
            # more digits would claim more than the tests can know
            mark += ", here p < 0.001" if p < 0.001 else f", here p = {p:.2g}"
        number = int(self.frame["p_value"].notna().sum())
        correction = "Holm over" if self.correction else "not corrected for"
        note = f"{mark} ({', '.join(tested['test'].unique())}; {correction} {number} test{'s' * (number > 1)})."
        return note if untested.empty else f"{note} ? {len(untested)} of {len(rows)} differences are not tested ({why})."


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


def _mark(rows: pd.DataFrame, delta: float, counts: str) -> str:
    """Write the mark of a cell: `counts` takes the numbers of several tests."""
    significant = rows["significant"]
    number = int(rows["p_value"].notna().sum())
    unknown = "?" if number < len(rows) else ""
    if len(rows) == 1:
        return "*" if significant.item() else unknown
    agree = int((significant & (np.sign(rows["delta"]) == np.sign(delta))).sum())
    against = int(significant.sum()) - agree
    return (counts.format(f"{agree}:{against}/{number}" if against else f"{agree}/{number}") if number else "") + unknown


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
