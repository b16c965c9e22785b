"""The data of a grid: a tidy table, what its scores are made of, and what depths cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pandas as pd

from st_matryoshka2d.evaluation import grid_io, pivots
from st_matryoshka2d.evaluation.grid_io import AXES, COLUMNS, ITEM_COLUMNS
from st_matryoshka2d.sizes import Size, as_size
from st_matryoshka2d.table_files import SavedTable


@dataclass(frozen=True, eq=False, repr=False)
class Scores(SavedTable):
    """What `GridResult` holds, for analyses that must not know of its other methods; see there."""

    frame: pd.DataFrame
    items: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=ITEM_COLUMNS))
    model: str = ""
    latency: pd.DataFrame | None = None
    revision: str = ""
    full_size: str = ""

    _file = grid_io.FILE

    def __post_init__(self) -> None:
        frame, items = grid_io.checked(self.frame, self.items)
        object.__setattr__(self, "frame", frame)  # the class is frozen
        object.__setattr__(self, "items", items)
        if self.latency is not None:
            object.__setattr__(self, "latency", grid_io.checked_latency(self.latency, frame["num_layers"]))

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

    @property
    def document_sizes(self) -> list[str]:
        """Sizes that documents had, in the order scored; `"same size"` where they had that of the queries."""
        return list(self.frame["documents"].unique())

    def at(
        self,
        *,
        precision: str | None = None,
        truncation: str | None = None,
        documents: Size | str | None = None,
        tasks: str | Sequence[str] | None = None,
        num_layers: int | Sequence[int] | None = None,
        dims: int | Sequence[int] | None = None,
    ) -> Self:
        """The part of the grid that has all that is asked for.

        Args:
            precision: One of `precisions`.
            truncation: One of `truncations`.
            documents: One of `document_sizes`.
            tasks: One or several names of tasks.
            num_layers: One or several depths.
            dims: One or several widths.

        Raises:
            ValueError: The grid has no such value, or no score with all of them.
        """
        wanted = {"precision": precision, "truncation": truncation, "documents": documents and str(documents)}
        return self.narrowed({**wanted, "task": tasks, "num_layers": num_layers, "dim": dims})

    def narrowed(self, wanted: Mapping[str, Any]) -> Self:
        """The rows that have one of some values in each of some columns; None stands for all values."""
        frame, items = self.frame, self.items
        for column, values in wanted.items():
            frame = grid_io.narrowed(frame, column, values)
            items = items[items[column].isin(frame[column])]
        return replace(self, frame=frame, items=items)

    def plain(self) -> Self:
        """The part with one value of each axis, the plain one where there are several; an error where none of them is."""
        return self.narrowed({axis: pivots.the_one(self.frame, axis) for axis in AXES})

    def named(self, name: str) -> Self:
        """The grid under another name such as `"after training"`, to tell two of one model apart where they are compared."""
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"A grid is named by a text such as 'after training', got {name!r}.")
        return replace(self, model=name)

    @classmethod
    def merge(cls, grids: Sequence[Self]) -> Self:
        """One grid of several, with the rows of all of them in the order given.

        Args:
            grids: Grids of one model that have no cell in common: other tasks, sizes, precisions or truncations.

        Raises:
            ValueError: There is no grid; they are of different models, weights or latencies; two have a score in common.
        """
        if not grids:
            raise ValueError("There is no grid to merge.")
        if len(names := {grid.model for grid in grids}) > 1:
            raise ValueError(f"These grids are of different models: {', '.join(sorted(names))}. Compare them instead.")
        known = {grid.revision for grid in grids if grid.revision}
        if len(known) > 1:
            raise ValueError(
                f"These grids are of {grids[0].model or 'one model'} with different weights or settings, as before and "
                "after training. Compare them instead, under two names: `grid.named('after training')`."
            )
        frame, items = grid_io.joined([(grid.frame, grid.items) for grid in grids])
        latency = grid_io.common_latency([grid.latency for grid in grids])
        full_size = max(grid.full_size for grid in grids)  # all are of one model, though not every grid says it
        return cls(frame, items, grids[0].model, latency, next(iter(known), ""), full_size)

    def with_latency(self, times: pd.DataFrame) -> Self:
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
        """Scores by layers (rows) and dims (columns), NaN where a size was not scored.

        A task's score is the mean over its splits and subsets, as in mteb. A mean with a NaN in it is NaN.

        Args:
            task: Name of one task; None for the mean over tasks.
            metric: Name of a metric; None for each task's main metric.

        Raises:
            ValueError: There is no such task or metric.
        """
        return pivots.pivot(self.frame, task, metric)

    def by_task(self, metric: str | None = None) -> pd.DataFrame:
        """Scores by task (rows) and size (columns, `"6L-128d"`); NaN where a task was not scored at a size."""
        return pivots.by_task(self.frame, metric)

    def score(self, size: Size | str, task: str | None = None) -> float:
        """The main score at one size, in mteb's units.

        Args:
            size: A `Size`, or text such as `"6L-128d"`.
            task: As for `pivot`.

        Raises:
            ValueError: There is no such task, or the size was not scored.
        """
        wanted, plain = as_size(size, "size"), self.plain()
        if wanted not in plain.sizes:
            told = "".join(f" in {one}" for one in pivots.to_be_told(self.frame))
            raise ValueError(f"{wanted} was not scored{told}; there are {', '.join(map(str, plain.sizes))}.")
        return float(plain.pivot(task)[wanted.dim][wanted.num_layers])

    def _content(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        frame, about = super()._content()
        return grid_io.with_items(frame, about.pop("items")), about

    @classmethod
    def _of(cls, frame: pd.DataFrame, about: dict[str, Any]) -> Self:
        return cls(*grid_io.without_items(frame), **about)
