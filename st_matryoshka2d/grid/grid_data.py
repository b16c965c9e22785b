"""The data of a grid: scores, the items behind them, and the time of each depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pandas as pd

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.tables import SavedTable
from st_matryoshka2d.grid import grid_tables, pivots
from st_matryoshka2d.grid.grid_tables import AXES, COLUMNS, ITEM_COLUMNS
from st_matryoshka2d.grid.pivots import Choice
from st_matryoshka2d.sizes import Size, as_size


@dataclass(frozen=True, eq=False, repr=False)
class Scores(SavedTable):
    """The data of a `GridResult`, without its analyses, so that these can import it; see `GridResult`."""

    frame: pd.DataFrame
    items: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=ITEM_COLUMNS))
    model: str = ""
    latency: pd.DataFrame | None = None
    revision: str = ""
    full_size: str = ""
    layers: Choice = None

    _file = grid_tables.FILE

    def __post_init__(self) -> None:
        frame, items = grid_tables.checked(self.frame, self.items)
        latency = None if self.latency is None else grid_tables.checked_latency(self.latency, frame["num_layers"])
        for name, table in (("frame", frame), ("items", items), ("latency", latency)):
            object.__setattr__(self, name, table)  # the class is frozen

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks, in the order in which they were scored."""
        return list(self.frame["task"].unique())

    @property
    def sizes(self) -> list[Size]:
        """Scored sizes, ascending."""
        pairs = self.frame[["num_layers", "dim"]].drop_duplicates()
        return sorted(Size(int(n), int(d)) for n, d in pairs.itertuples(index=False))

    @property
    def precisions(self) -> list[str]:
        """Precisions, in the order in which they were scored."""
        return list(self.frame["precision"].unique())

    @property
    def truncations(self) -> list[str]:
        """Names of the truncations, in the order in which they were scored; `"first"` keeps the first coordinates."""
        return list(self.frame["truncation"].unique())

    @property
    def document_sizes(self) -> list[str]:
        """Document sizes, in the order in which they were scored; `"same size"` if they equal the query size."""
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
        """Select a part of the grid.

        Args:
            precision: One of `precisions`.
            truncation: One of `truncations`.
            documents: One of `document_sizes`.
            tasks: One or several names of tasks.
            num_layers: One or several depths.
            dims: One or several widths.

        Raises:
            ValueError: The grid has no such value, or no score that matches all of them.
        """
        wanted = {"precision": precision, "truncation": truncation, "documents": documents and str(documents)}
        return self.narrowed({**wanted, "task": tasks, "num_layers": num_layers, "dim": dims})

    def narrowed(self, wanted: Mapping[str, Any]) -> Self:
        """Select rows by the values of several columns; None selects all values."""
        frame, items = self.frame, self.items
        for column, values in wanted.items():
            frame = grid_tables.narrowed(frame, column, values)
        if len(frame) == len(self.frame):
            return self
        for column in wanted:
            items = items[items[column].isin(frame[column])]
        return replace(self, frame=frame, items=items)

    def plain(self) -> Self:
        """Select one table of layers by dims, if it is clear which."""
        return self.narrowed(pivots.unmistakable(self.frame))

    def named(self, name: str) -> Self:
        """Return the grid under another name, such as `"after training"`, for titles and comparisons."""
        if not isinstance(name, str) or not name.strip():
            raise UsageError(f"The name of a grid must be a text such as 'after training', got {name!r}.")
        return replace(self, model=name)

    @classmethod
    def merge(cls, grids: Sequence[Self]) -> Self:
        """Merge several grids into one, with their rows in the order given.

        Args:
            grids: Grids of one model with different tasks, sizes, precisions or truncations.

        Raises:
            ValueError: The list is empty; models, weights or latencies differ; a score is in two
                grids.
        """
        _check_mergeable(grids)
        frame = pd.concat([grid.frame for grid in grids], ignore_index=True)
        if twice := grid_tables.repeated(frame):
            raise UsageError(
                f"{twice} is in two of these grids. Remove it from one: "
                "`grid.at(tasks=..., num_layers=..., dims=...)` selects a part."
            )
        items = pd.concat([grid.items for grid in grids if not grid.items.empty] or [grids[0].items], ignore_index=True)
        latency = next((grid.latency for grid in grids if grid.latency is not None), None)
        revision, full_size = (max(getattr(grid, name) for grid in grids) for name in ("revision", "full_size"))
        layers = next((grid.layers for grid in grids if grid.layers is not None), None)
        return cls(frame, items, grids[0].model, latency, revision, full_size, layers)

    def with_latency(self, times: pd.DataFrame, *, documents: pd.DataFrame | None = None) -> Self:
        """Return the grid with the time of each depth, for `recommend`, `pareto` and `plot_pareto`.

        Args:
            times: The result of `benchmark_latency(model)`, or your own table with `num_layers`,
                `milliseconds_per_text` and optionally `parameters`. For search, time your queries
                one by one: `batch_size=1`.
            documents: Times of documents, which are longer than queries and come in batches; None
                if `times` hold for both. `recommend` uses them with `queries_per_document`.

        Raises:
            ValueError: A column or a depth of the grid is missing, a depth is repeated, or a time
                is not above 0.
        """
        timed = replace(self, latency=times)
        if documents is None:
            return timed
        of_documents = grid_tables.checked_latency(documents, ()).set_index("num_layers")["milliseconds_per_text"]
        column = of_documents.reindex(times["num_layers"]).array
        return replace(self, latency=times.assign(**{grid_tables.PER_DOCUMENT: column}))

    def to_frame(self) -> pd.DataFrame:
        """A copy of the tidy table; columns `precision`, `truncation` and `documents` only if they are not all default."""
        used = [axis for axis, default in AXES.items() if set(self.frame[axis]) != {default}]
        return self.frame[[*COLUMNS, *used]].copy()

    def pivot(self, task: str | None = None, metric: str | None = None) -> pd.DataFrame:
        """Scores by layers (rows) and dims (columns); NaN if a size was not scored.

        The score of a task is the mean over its splits and subsets, as in mteb. Means do not skip
        NaN.

        Args:
            task: Name of one task; None for the mean over tasks.
            metric: Name of a metric, such as `"mrr_at_10"`; None for each task's main metric.

        Raises:
            ValueError: There is no such task or metric, or a task lacks the metric.
        """
        return pivots.pivot(self.frame, task, metric)

    def by_task(self, metric: str | None = None) -> pd.DataFrame:
        """Scores by task (rows) and size (columns, `"6L-128d"`); NaN if a task was not scored at a size."""
        return pivots.by_task(self.frame, metric)

    def score(self, size: Size | str, task: str | None = None, metric: str | None = None) -> float:
        """The score at one size, in mteb's units.

        Args:
            size: A `Size`, or text such as `"6L-128d"`.
            task: As for `pivot`.
            metric: As for `pivot`.

        Raises:
            ValueError: There is no such task or metric, or the size was not scored.
        """
        wanted, plain = as_size(size, "size"), self.plain()
        if wanted not in plain.sizes:
            where = "".join(f" in {label}" for label in pivots.shown_labels(self.frame))
            raise UsageError(f"{wanted} was not scored{where}, only {', '.join(map(str, plain.sizes))}.")
        return float(plain.pivot(task, metric)[wanted.dim][wanted.num_layers])

    def _content(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        frame, about = super()._content()
        return grid_tables.to_rows(frame, about.pop("items")), about

    @classmethod
    def _of(cls, frame: pd.DataFrame, about: dict[str, Any]) -> Self:
        return cls(*grid_tables.of_rows(frame), **about)


def _check_mergeable(grids: Sequence[Scores]) -> None:
    if not grids:
        raise UsageError("There is no grid to merge.")
    if len(names := {grid.model for grid in grids}) > 1:
        raise UsageError(f"These grids are of different models: {', '.join(sorted(names))}. Compare them instead.")
    known = [grid.layers for grid in grids if grid.layers is not None]
    if other := [layers for layers in known if layers != known[0]]:
        told = f"layers={known[0]!r} and layers={other[0]!r}"
        raise UsageError(f"The sizes of these grids keep different layers: {told}. Compare them instead.")
    if len({grid.revision for grid in grids if grid.revision}) > 1:
        raise UsageError(
            f"These grids are of {grids[0].model or 'one model'} with different weights or settings, such as before and "
            "after training. Compare them instead, under two names: `grid.named('after training')`."
        )
    latencies = [grid.latency for grid in grids if grid.latency is not None]
    if any(not latency.equals(latencies[0]) for latency in latencies):
        raise UsageError(
            "These grids have different latencies. Remove them with `replace(grid, latency=None)`, merge, and add the "
            "times of one machine to the result with `with_latency`."
        )
