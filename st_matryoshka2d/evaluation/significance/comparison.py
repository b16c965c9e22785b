"""Two grids, size by size: which is better, and is it more than chance."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from st_matryoshka2d.evaluation.grid import pivots, tables
from st_matryoshka2d.evaluation.grid.columns import AXES
from st_matryoshka2d.evaluation.grid.result import GridResult
from st_matryoshka2d.evaluation.significance import matching
from st_matryoshka2d.evaluation.significance.tests import holm
from st_matryoshka2d.evaluation.significance.which_test import cell_test

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["GridComparison", "compare"]

_SIZE = ["num_layers", "dim"]


@dataclass(frozen=True, eq=False, repr=False)
class GridComparison:
    """The difference of the main scores of two grids, and how sure it is; made by `compare`.

    Args:
        frame: One row for each task, split, subset and size; see `to_frame`.
        names: What the two grids are called; differences are the first minus the other.
        alpha: A difference is significant where the adjusted p is below.
        correction: `"holm"`, over all tests in `frame`; None, where p was not adjusted.
    """

    frame: pd.DataFrame
    names: tuple[str, str]
    alpha: float
    correction: str | None

    def to_frame(self) -> pd.DataFrame:
        """A copy of the tidy table.

        Columns are `task`, `split`, `subset`, `num_layers`, `dim`, `metric`, `score`, `other_score`, `delta`, `test` (which
        one, or `"none: "` and why), `n` (queries or pairs), `p_value`, `p_adjusted` and `significant`.
        """
        return self.frame.copy()

    def pivot(self, task: str | None = None) -> pd.DataFrame:
        """Differences by layers (rows) and dims (columns), in mteb's units, averaged as in `GridResult.pivot`.

        Args:
            task: Name of one task; None for the mean over tasks.

        Raises:
            ValueError: There is no such task.
        """
        return pivots.pivot(self.frame.assign(score=self.frame["delta"], is_main=True, **AXES), task)

    def to_markdown(self, task: str | None = None) -> str:
        """The pivot as a Markdown table, in points (hundredths).

        A `*` marks a significant difference. A mean over several tests has no test of its own: `(5/7)` says that 5 of its 7
        tests are significant and have the sign of the mean, `(5:1/7)` that one more is significant the other way. A `?`
        marks a difference that was not tested, or a mean with such a difference in it; `to_frame()["test"]` says why. A size
        at which one of the tasks was not scored has no mean, and is empty.

        Args:
            task: As for `pivot`.
        """
        return tables.markdown(self._texts(task, " ({})"))

    def plot(
        self, path: str | os.PathLike[str] | None = None, title: str | None = None, *, task: str | None = None
    ) -> Figure:
        """Heat map of the pivot, in points: blue where the first grid is better, red where the other is.

        The maps of Starbucks' Figures 3 to 9 (arXiv:2410.13230), with the marks of `to_markdown`.

        Args:
            path: Where to save it; the ending (`.png`, `.svg`, `.pdf`) says how. None saves nothing.
            title: None for the name of the task.
            task: As for `pivot`.

        Returns:
            A figure that pyplot does not know of, so that nothing has to be closed.
        """
        # Here, because reading differences must not cost the import of matplotlib.
        from st_matryoshka2d.plots.delta_map import delta_map
        from st_matryoshka2d.plots.saving import check_ending, save_figure

        check_ending(path)
        figure = delta_map(
            self.pivot(task) * 100,
            self._texts(task, "\n{}"),
            title=title if title is not None else self._subject(task),
            label="points",
            names=self.names,
            note=f"{self._minus(task)}. {self._note(task)}",
        )
        save_figure(figure, path)
        return figure

    def __str__(self) -> str:
        return f"{self._subject()}: {self._minus()}, points\n{self.to_markdown()}\n{self._note()}"

    __repr__ = __str__

    def _rows(self, task: str | None) -> pd.DataFrame:
        return self.frame if task is None else self.frame[self.frame["task"] == task]

    def _subject(self, task: str | None = None) -> str:
        return pivots.subject(list(self._rows(task)["task"].unique()))

    def _minus(self, task: str | None = None) -> str:
        metrics = self._rows(task)["metric"].unique()
        return f"{metrics[0] if len(metrics) == 1 else 'main score'}, {' minus '.join(self.names)}"

    def _texts(self, task: str | None, counts: str) -> pd.DataFrame:
        deltas = self.pivot(task) * 100
        texts = pd.DataFrame("", index=deltas.index, columns=deltas.columns)
        layers, dims = deltas.index.tolist(), deltas.columns.tolist()
        cells = dict(iter(self._rows(task).groupby(_SIZE)))
        tasks = self._rows(task)["task"].nunique()
        for (row, column), delta in np.ndenumerate(deltas.to_numpy()):
            rows = cells.get((layers[row], dims[column]))
            if rows is not None and rows["task"].nunique() == tasks:
                texts.iat[row, column] = "nan" if np.isnan(delta) else f"{delta:+z.2f}{_mark(rows, delta, counts)}"
        return texts

    def _note(self, task: str | None = None) -> str:
        """What the marks mean."""
        rows = self._rows(task)
        tested, untested = rows[rows["p_value"].notna()], rows[rows["p_value"].isna()]
        why = ", ".join(_reason(test) for test in untested["test"].unique())
        if tested.empty:
            return f"? Not tested ({why})."
        mark = f"* p < {self.alpha:g}"
        if rows.groupby(_SIZE).size().max() > 1:
            mark = f"k/m: k of m tests have p < {self.alpha:g} and the sign of the mean"
            mark += ", k:l/m: and l the other sign" if ":" in "".join(self._texts(task, "{}").to_numpy().ravel()) else ""
        number = int(self.frame["p_value"].notna().sum())
        correction = "Holm over" if self.correction else "not corrected for"
        note = f"{mark} ({', '.join(tested['test'].unique())}; {correction} {number} test{'s' * (number > 1)})."
        return note if untested.empty else f"{note} ? {len(untested)} of {len(rows)} differences are not tested ({why})."


def compare(
    grid: GridResult, other: GridResult, *, test: str = "auto", alpha: float = 0.05, correction: str | None = "holm"
) -> GridComparison:
    """Compare the main scores of two grids at the sizes that both have.

    Each task, split, subset and size has a test of its own, on the items that both grids keep: a paired t-test where they
    are scores of queries, Steiger's test where they are similarities of pairs with a gold score. Metrics without items have
    no test. Where a grid has several precisions or truncations, its plain ones are compared; `GridResult.at` picks others.
    Two grids of one size each are compared whatever the sizes: `grid.at(num_layers=6, dims=384)` and the same at 128.

    Args:
        grid: One grid.
        other: Another of the same tasks; differences are `grid` minus `other`.
        test: `"auto"`; `"fisher"` for Fisher's z instead of Steiger's test, as in Starbucks' Table 4, to compare with that.
        alpha: A difference is significant where p is below.
        correction: `"holm"` adjusts p for the number of tests in the whole comparison; None leaves it.

    Raises:
        TypeError: `other` is not a grid.
        ValueError: The grids have no size in common, or differ in tasks, splits, subsets, main metrics, items or gold
            scores; or an argument makes no sense.

    Example:
        >>> def grid(name: str, ndcg: list[float]) -> GridResult:
        ...     cell = {"task": "T", "split": "test", "subset": "default", "num_layers": 6, "dim": 64}
        ...     score = {"metric": "ndcg_at_10", "score": np.mean(ndcg), "is_main": True}
        ...     items = {"ids": ["q1", "q2", "q3", "q4"], "values": np.array(ndcg), "gold": None}
        ...     return GridResult(pd.DataFrame([cell | score]), pd.DataFrame([cell | items]), name)
        >>> print(compare(grid("new", [0.9, 0.5, 0.7, 0.6]), grid("old", [0.6, 0.4, 0.5, 0.5])))
        T: ndcg_at_10, new minus old, points
        | layers / dim |      64 |
        | -----------: | ------: |
        |            6 | +17.50* |
        * p < 0.05 (paired t; Holm over 1 test).
    """
    if not isinstance(other, GridResult):
        raise TypeError(f"A grid is compared with another GridResult, got {type(other).__name__}.")
    if test not in ("auto", "fisher"):
        raise ValueError(f"test is 'auto' or 'fisher', got {test!r}.")
    if correction not in ("holm", None):
        raise ValueError(f"correction is 'holm' or None, got {correction!r}.")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is between 0 and 1, got {alpha!r}.")
    first, second = grid.plain(), other.plain()
    facing = matching.at_the_size_of(first, second)
    frame = matching.joined(first, facing)
    ours, theirs = matching.items_by_cell(first), matching.items_by_cell(facing)
    tests = []
    for row in frame.to_dict("records"):
        cell = matching.cell_of(row)
        scores = (row["score"], row["other_score"])
        tests.append(cell_test(row["metric"], scores, ours.get(cell), theirs.get(cell), fisher=test == "fisher", where=cell))
    frame = pd.concat([frame.assign(delta=frame["score"] - frame["other_score"]), pd.DataFrame(tests)], axis=1)
    adjusted = holm(frame["p_value"]) if correction else frame["p_value"].to_numpy()
    frame = frame.assign(p_adjusted=adjusted, significant=adjusted < alpha)
    return GridComparison(frame, matching.names(first, second), alpha, correction)


def _reason(test: str) -> str:
    return test.removeprefix("none: ") if test.startswith("none: ") else f"{test} gives no p"


def _mark(rows: pd.DataFrame, delta: float, counts: str) -> str:
    found = rows["significant"]
    number = int(rows["p_value"].notna().sum())
    unknown = "?" if number < len(rows) else ""
    if len(rows) == 1:
        return "*" if found.item() else unknown
    agree = int((found & (np.sign(rows["delta"]) == np.sign(delta))).sum())
    against = int(found.sum()) - agree
    return (counts.format(f"{agree}:{against}/{number}" if against else f"{agree}/{number}") if number else "") + unknown
