"""What an evaluation at many sizes found: a tidy table and the few views of it that people ask for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLUMNS", "GridResult"]

COLUMNS = ["task", "split", "subset", "num_layers", "dim", "metric", "score", "is_main"]


@dataclass(frozen=True, eq=False, repr=False)
class GridResult:
    """Scores of a model at many sizes.

    Scores are in mteb's units (0..1 for most metrics); percent appears only where something is printed or drawn.

    Args:
        frame: One row for each task, split, subset, size and metric; columns `COLUMNS`. `is_main` marks the metric that the
            task is judged by.

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

    def __post_init__(self) -> None:
        if set(self.frame.columns) != set(COLUMNS):
            raise ValueError(f"A GridResult has the columns {COLUMNS}, got {list(self.frame.columns)}.")
        if self.frame.empty:
            raise ValueError("A GridResult needs at least one score, got none.")
        frame = self.frame[COLUMNS].reset_index(drop=True)
        if (repeated := frame.duplicated(["task", "split", "subset", "num_layers", "dim", "metric"])).any():
            raise ValueError(
                f"Each score can be there only once, this one is repeated: {frame[repeated].iloc[0].to_dict()}."
            )
        object.__setattr__(self, "frame", frame)

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks, in the order scored."""
        return list(self.frame["task"].unique())

    @property
    def sizes(self) -> list[Size]:
        """Sizes scored, ascending."""
        pairs = self.frame[["num_layers", "dim"]].drop_duplicates()
        return sorted(Size(int(n), int(d)) for n, d in pairs.itertuples(index=False))

    def to_frame(self) -> pd.DataFrame:
        """A copy of the tidy table."""
        return self.frame.copy()

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
        by_task = self._rows(task, metric).groupby(["num_layers", "dim", "task"])["score"].agg(_mean).unstack("task")
        return by_task.mean(axis=1, skipna=False).unstack("dim")

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

    def to_markdown(self, task: str | None = None, metric: str | None = None) -> str:
        """The pivot as a Markdown table, in percent; sizes that were not scored are empty.

        Args:
            task: As for `pivot`.
            metric: As for `pivot`.
        """
        cells = self._texts(task, metric)
        head = ["layers / dim", *map(str, cells.columns)]
        body = [[str(layers), *row] for layers, row in zip(cells.index, cells.to_numpy(), strict=True)]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        rule = ["-" * (width - 1) + ":" for width in widths]
        lines = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in (head, rule, *body)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

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
        from st_matryoshka2d.evaluation.plots import heat_map

        figure = heat_map(
            self.pivot(task, metric) * 100,
            self._texts(task, metric),
            title=title if title is not None else self._subject(task),
            label=f"{self._metric(task, metric)} (%)",
        )
        if path is not None:
            figure.savefig(path, dpi=200, bbox_inches="tight")
        return figure

    def __str__(self) -> str:
        return f"{self._subject(None)}: {self._metric(None, None)}, percent\n{self.to_markdown()}"

    __repr__ = __str__

    def _rows(self, task: str | None, metric: str | None) -> pd.DataFrame:
        rows = self.frame
        if task is not None:
            if task not in self.tasks:
                raise ValueError(f"There is no task {task!r} here; there are {', '.join(self.tasks)}.")
            rows = rows[rows["task"] == task]
        if metric is None:
            return rows[rows["is_main"]]
        if metric not in set(rows["metric"]):
            raise ValueError(f"There is no metric {metric!r} here; there are {', '.join(rows['metric'].unique())}.")
        return rows[rows["metric"] == metric]

    def _texts(self, task: str | None, metric: str | None) -> pd.DataFrame:
        """The pivot as text: empty where a size was not scored, `nan` where the score is NaN."""
        scored = self._rows(task, metric).pivot_table(index="num_layers", columns="dim", values="score", aggfunc="size")
        return (self.pivot(task, metric) * 100).map("{:.2f}".format).where(scored.notna(), "")

    def _subject(self, task: str | None) -> str:
        names = [task] if task is not None else self.tasks
        return names[0] if len(names) == 1 else f"mean of {len(names)} tasks"

    def _metric(self, task: str | None, metric: str | None) -> str:
        names = self._rows(task, metric)["metric"].unique()
        return str(names[0]) if len(names) == 1 else "main score"


def _mean(scores: pd.Series[float]) -> float:
    # pandas would leave NaN out, and a size that failed at one task would look better for it
    return float(scores.to_numpy().mean())
