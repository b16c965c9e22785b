"""What an evaluation at many sizes found: a tidy table and the few views of it that people ask for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pandas as pd

from st_matryoshka2d.evaluation import choice, cost, files, pareto, pivots, rows, tables
from st_matryoshka2d.evaluation.columns import AXES, COLUMNS, ITEM_COLUMNS
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from st_matryoshka2d.evaluation.comparison import GridComparison

__all__ = ["GridResult"]


@dataclass(frozen=True, eq=False, repr=False)
class GridResult:
    """Scores of a model at many sizes.

    Scores are in mteb's units (0..1 for most metrics); percent appears only where something is printed or drawn.

    Where a grid was made with several precisions or truncations, the views below are of plain float32 prefixes; `at` gives
    the grid of another one.

    Args:
        frame: One row for each task, split, subset, size and metric; columns `COLUMNS`, and where the grid has them
            `precision` and `truncation`. `is_main` marks the metric that the task is judged by.
        items: What the main scores are made of, for tests of significance; columns `ITEM_COLUMNS`, one row for each task,
            split, subset and size that has them. `ids` and `values` are a list of names and an array of numbers: the main
            metric of each query, or, where `gold` is an array too, the similarity of each pair, whose correlation with
            `gold` is the score.
        model: Name of the model, for titles.
        latency: What each depth costs; see `with_latency`.

    Raises:
        ValueError: Columns are missing or unknown, there are no rows, or a score is there twice.

    Example:
        >>> row = {"task": "T", "split": "test", "subset": "default", "metric": "cosine_spearman", "is_main": True}
        >>> scores = [{"num_layers": 3, "dim": 64, "score": 0.71}, {"num_layers": 6, "dim": 64, "score": 0.785}]
        >>> print(GridResult(pd.DataFrame([row | score for score in scores])))
        T: cosine_spearman, percent
        | layers / dim |    64 |
        | -----------: | ----: |
        |            3 | 71.00 |
        |            6 | 78.50 |
    """

    frame: pd.DataFrame
    items: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=ITEM_COLUMNS))
    model: str = ""
    latency: pd.DataFrame | None = None

    def __post_init__(self) -> None:
        frame, items = rows.checked(self.frame, self.items)
        object.__setattr__(self, "frame", frame)  # the class is frozen
        object.__setattr__(self, "items", items)
        if self.latency is not None:
            object.__setattr__(self, "latency", cost.checked_latency(self.latency, frame["num_layers"]))

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks, in the order scored."""
        return list(self.frame["task"].unique())

    @property
    def sizes(self) -> list[Size]:
        """Sizes scored, ascending."""
        pairs = self.frame[["num_layers", "dim"]].drop_duplicates()
        return sorted(Size(int(n), int(d)) for n, d in pairs.itertuples(index=False))

    @property
    def precisions(self) -> list[str]:
        """Precisions scored, in the order scored."""
        return list(self.frame["precision"].unique())

    @property
    def truncations(self) -> list[str]:
        """Names of the ways in which embeddings were narrowed, in the order scored."""
        return list(self.frame["truncation"].unique())

    def at(
        self, *, precision: str | None = None, truncation: str | None = None, tasks: str | Sequence[str] | None = None
    ) -> GridResult:
        """The grid of one precision, of one way of truncating, or of some tasks alone.

        Args:
            precision: One of `precisions`.
            truncation: One of `truncations`.
            tasks: Names of tasks.

        Raises:
            ValueError: The grid has no such precision, truncation or task.
        """
        frame, items = self.frame, self.items
        for column, values in (("precision", precision), ("truncation", truncation), ("task", tasks)):
            frame, items = rows.narrowed(frame, items, column, values)
        return replace(self, frame=frame, items=items)

    @staticmethod
    def merge(grids: Sequence[GridResult]) -> GridResult:
        """One grid of several, with the rows of all of them in the order given.

        Args:
            grids: Grids of one model that have no cell in common: other tasks, sizes, precisions or truncations.

        Raises:
            ValueError: There is no grid, they are of different models, two have a score in common, or different latencies.
        """
        if not grids:
            raise ValueError("There is no grid to merge.")
        if len(names := {grid.model for grid in grids}) > 1:
            raise ValueError(f"These grids are of different models: {', '.join(sorted(names))}. Compare them instead.")
        frame, items = rows.joined([(grid.frame, grid.items) for grid in grids])
        return GridResult(frame, items, grids[0].model, rows.common_latency([grid.latency for grid in grids]))

    def with_latency(self, times: pd.DataFrame) -> GridResult:
        """The grid with what each depth costs, for `recommend`, `pareto` and `plot_pareto`.

        Args:
            times: What `benchmark_latency(model)` returns, or a table of your own with `num_layers`,
                `milliseconds_per_text` and, if you like, `parameters`.

        Raises:
            ValueError: A column or a depth of the grid is missing, a depth is there twice, or a time is not above 0.
        """
        return replace(self, latency=times)

    def to_frame(self) -> pd.DataFrame:
        """A copy of the tidy table, with `precision` and `truncation` only where there is more than the plain one."""
        told = [axis for axis, plain in AXES.items() if set(self.frame[axis]) != {plain}]
        return self.frame[[*COLUMNS, *told]].copy()

    def pivot(self, task: str | None = None, metric: str | None = None) -> pd.DataFrame:
        """Scores by layers (rows) and dims (columns).

        A task's score is the mean over its splits and subsets, as in mteb. A mean with a NaN in it is NaN. Sizes that
        were not scored are NaN too.

        Args:
            task: Name of one task; None for the mean over tasks.
            metric: Name of a metric; None for each task's main metric.

        Raises:
            ValueError: There is no such task or metric.
        """
        return pivots.pivot(self.frame, task, metric)

    def score(self, size: Size | str, task: str | None = None) -> float:
        """The main score at one size, in mteb's units.

        Args:
            size: A `Size`, or text such as `"6L-128d"`.
            task: Name of one task; None for the mean over tasks.

        Raises:
            ValueError: There is no such task, or the size was not scored.
        """
        wanted = Size.parse(size) if isinstance(size, str) else size
        if not isinstance(wanted, Size):
            raise TypeError(f"size must be a Size or text such as '6L-128d', got {size!r}.")
        if wanted not in self.sizes:
            raise ValueError(f"{wanted} was not scored; there are {', '.join(map(str, self.sizes))}.")
        return float(self.pivot(task)[wanted.dim][wanted.num_layers])

    def compare(
        self, other: GridResult, *, test: str = "auto", alpha: float = 0.05, correction: str | None = "holm"
    ) -> GridComparison:
        """What this grid scores above another, size by size, and whether that is more than chance.

        Args:
            other: Another grid of the same tasks; sizes that both have are compared.
            test: `"auto"` for a paired t-test of queries, or Steiger's test of correlations with gold scores of pairs;
                `"fisher"` for Fisher's z of correlations, as in Starbucks' Table 4.
            alpha: A difference is significant where p is below.
            correction: `"holm"` adjusts p for the number of tests; None leaves it.

        Raises:
            TypeError: `other` is not a grid.
            ValueError: The two were not scored on the same data, have no size in common, or an argument makes no sense.

        Example:
            >>> row = {"task": "T", "split": "test", "subset": "default", "metric": "accuracy", "is_main": True}
            >>> size = {"num_layers": 6, "dim": 64}
            >>> old, new = (GridResult(pd.DataFrame([row | size | {"score": score}])) for score in (0.71, 0.785))
            >>> print(new.compare(old).to_markdown())
            | layers / dim |    64 |
            | -----------: | ----: |
            |            6 | +7.50 |
        """
        # Here, because it needs this class, and scipy.
        from st_matryoshka2d.evaluation import comparison

        return comparison.compare(self, other, test=test, alpha=alpha, correction=correction)

    def to_markdown(self, task: str | None = None, metric: str | None = None) -> str:
        """The pivot as a Markdown table, in percent; sizes that were not scored are empty.

        Args:
            task: As for `pivot`.
            metric: As for `pivot`.
        """
        return tables.markdown(pivots.percent(self.frame, task, metric))

    def to_latex(self, task: str | None = None, metric: str | None = None) -> str:
        """The pivot as a LaTeX table (package booktabs), in percent; sizes that were not scored are empty.

        Args:
            task: As for `pivot`.
            metric: As for `pivot`.
        """
        return tables.latex(pivots.percent(self.frame, task, metric))

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """The tidy table as CSV.

        Args:
            path: Where to write it; None returns the text.
        """
        if path is None:
            return self.to_frame().to_csv(index=False)
        files.replace_file(path, lambda part: self.to_frame().to_csv(part, index=False))
        return None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything, items too, to one file, which is never left half written.

        Args:
            path: Ends in `.parquet` or `.json`.

        Raises:
            ValueError: Another ending.
        """
        files.write(path, self.frame, self.items, {"model": self.model, "latency": self.latency})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> GridResult:
        """Read what `save` wrote.

        Args:
            path: Ends in `.parquet` or `.json`.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: Another ending, or the file is not a saved grid.
        """
        frame, items, names = files.read(path)
        return cls(frame, items, **names)

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        title: str | None = None,
        *,
        task: str | None = None,
        metric: str | None = None,
    ) -> Figure:
        """Heat map: layers upwards, dims to the right, percent in every cell that was scored.

        Args:
            path: Where to save it; the ending (`.png`, `.svg`, `.pdf`) says how. None saves nothing.
            title: None for the name of the task.
            task: As for `pivot`.
            metric: As for `pivot`.

        Returns:
            A figure that pyplot does not know of, so that nothing has to be closed.
        """
        # Here, because reading scores must not cost the import of matplotlib.
        from st_matryoshka2d.plots.heat_map import heat_map

        figure = heat_map(
            self.pivot(task, metric) * 100,
            pivots.percent(self.frame, task, metric),
            title=title if title is not None else pivots.subject([task] if task else self.tasks),
            label=f"{pivots.metric_name(self.frame, task, metric)} (%)",
        )
        if path is not None:
            figure.savefig(path, dpi=200, bbox_inches="tight")
        return figure

    def recommend(
        self,
        min_score: float | None = 0.97,
        *,
        max_ms: float | None = None,
        max_bytes: float | None = None,
        task: str | None = None,
    ) -> choice.Recommendation:
        """The size to ship: the cheapest that is good enough and within the budget.

        Cheapest is least time (without latency, fewest layers), then fewest bytes, then best score. The full size is the
        largest depth and width of the grid, in the precision of most bytes.

        Args:
            min_score: Share of the full size's score to keep. None asks for the best score within the other limits instead.
            max_ms: Milliseconds for a text; needs `with_latency`.
            max_bytes: Bytes of a vector in the index: 4 x dim in float32, 1 x dim in int8, dim / 8 in binary.
            task: Name of one task; None for the mean over tasks.

        Returns:
            What prints well, and has `size`, `precision`, and in `to_frame()` every size and why it was refused.

        Raises:
            TypeError: A limit is not a number.
            ValueError: A limit makes no sense, no size meets all of them, the full size was not scored or its score is not
                above 0, or there is no such task.
        """
        return choice.recommend(self, min_score, max_ms, max_bytes, task)

    def pareto(self, cost: str | Sequence[str] | None = None, task: str | None = None) -> pd.DataFrame:
        """The sizes that no other size beats: none is at least as good in score and every cost, and better in one of them.

        Args:
            cost: One or several of `milliseconds_per_text`, `num_layers`, `parameters`, `bytes` and `dim`; None for the
                time (layers, without latency) and the bytes of a vector.
            task: Name of one task; None for the mean over tasks.

        Raises:
            ValueError: There is no such cost or task, or the cost needs `with_latency`.
        """
        return pareto.pareto(self, cost, task)

    def plot_pareto(
        self,
        path: str | os.PathLike[str] | None = None,
        title: str | None = None,
        *,
        cost: str | None = None,
        task: str | None = None,
    ) -> Figure:
        """Score of every size against one cost, with a line through the best score that each cost buys.

        A pale point is dominated: another size is at least as good in score, this cost and bytes, and better in one.

        Args:
            path: As for `plot`.
            title: As for `plot`.
            cost: As for `pareto`, but one; None for the time (layers, without latency).
            task: As for `pareto`.
        """
        from st_matryoshka2d.plots.pareto import plot_pareto

        return plot_pareto(self, path, title, cost, task)

    def __str__(self) -> str:
        return f"{pivots.subject(self.tasks)}: {pivots.metric_name(self.frame)}, percent\n{self.to_markdown()}"

    __repr__ = __str__
