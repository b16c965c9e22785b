"""The differences between two grids, with significance tests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from st_matryoshka2d.grid import pivots
from st_matryoshka2d.grid.grid_tables import AXES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PART, _SIZE = ["task", "split", "subset"], ["num_layers", "dim"]


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
