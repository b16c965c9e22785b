"""The Pareto front: sizes for which no other size is both better and cheaper, as a table and as a plot."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.grid import pivots
from st_matryoshka2d.grid.costs import HOW_TO_TIME, costs, full_row, name_of
from st_matryoshka2d.grid.from_agreement import SCORE, measure_of
from st_matryoshka2d.grid.grid_data import Scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COSTS = ["milliseconds_per_text", "num_layers", "parameters", "megabytes", "bytes", "dim"]
_TIMED = {"milliseconds_per_text", "parameters", "megabytes"}  # which come with times


class _Front(pd.DataFrame):
    """The table that `pareto` returns: prints the main columns only. Results of pandas operations are plain frames."""

    def __repr__(self) -> str:
        forms: dict[str, tuple[str, Callable[[Any], str]]] = {
            "score": (self.attrs.get("measure", SCORE), lambda score: f"{score * 100:.2f}"),
            "relative": (f"of {self.attrs.get('largest', 'largest')}", lambda share: f"{share * 100:.1f} %"),
            "milliseconds_per_text": ("ms per text", "{:.3g}".format),
            "parameters": ("parameters", "{:,d}".format),
            "megabytes": ("MB", "{:.3g}".format),
            "bytes": ("bytes", "{:d}".format),
        }
        # pandas sets columns one space apart.
        texts = {f"  {head}": self[name].map(form) for name, (head, form) in forms.items() if self[name].notna().any()}
        table = pd.DataFrame(texts).set_axis([*map(name_of, self.itertuples())]).rename_axis("size", axis=1).to_string()
        return "\n\n".join([table, *pivots.layers_note(self.attrs.get("layers", {}))])

    __str__ = __repr__


def pareto(
    grid: Scores, cost: str | Sequence[str] | None = None, task: str | None = None, metric: str | None = None
) -> _Front:
    """Return the rows of `costs` on the front, cheapest first."""
    chosen = checked_costs(grid, [time_column(grid), "bytes"] if cost is None else cost)
    table = costs(grid.frame, grid.latency, task, metric=metric)
    front = _Front(table[on_front(table, chosen)].sort_values([*chosen, "score"], ignore_index=True))
    layers = pivots.layers_by_depth(grid.layers, grid.sizes, grid.full_size)
    front.attrs |= {"measure": measure_of(grid.frame, task, metric), "layers": layers}
    if (largest := full_row(table)) is not None:
        front.attrs["largest"] = name_of(largest)
    return front


def plot_pareto(
    grid: Scores,
    path: str | os.PathLike[str] | None,
    title: str | None,
    cost: str | None,
    task: str | None,
    metric: str | None,
) -> Figure:
    """Plot the score of every size against one cost."""
    from st_matryoshka2d.plots.pareto import plot_front  # draws only when asked to
    from st_matryoshka2d.plots.saving import saved

    (column,) = checked_costs(grid, time_column(grid) if cost is None else cost)
    table = costs(grid.frame, grid.latency, task, metric=metric).dropna(subset="score")
    if table.empty:
        raise UsageError("No size of this grid has a score, so there is nothing to draw.")
    table = table.assign(front=on_front(table, [column]), name=[name_of(row) for row in table.itertuples()])
    title = pivots.titled(grid.model, grid.tasks, task) if title is None else title
    label = f"{pivots.metric_name(grid.frame, task, metric)} (%)"
    return saved(path, lambda: plot_front(table, column, title, label))


def on_front(table: pd.DataFrame, chosen: Sequence[str]) -> pd.Series[bool]:
    """Mark the rows that no other row dominates."""
    values = table.assign(score=-table["score"])[[*chosen, "score"]].to_numpy(dtype=float, na_value=np.nan)
    no_worse, better = (values[:, None] <= values).all(axis=2), (values[:, None] < values).any(axis=2)
    return table["score"].notna() & ~pd.Series((no_worse & better).any(axis=0), table.index)


def time_column(grid: Scores) -> str:
    """The column that measures time: the number of layers if the grid has no latency."""
    return "num_layers" if grid.latency is None else "milliseconds_per_text"


def checked_costs(grid: Scores, cost: str | Sequence[str]) -> list[str]:
    """Check the names of cost columns and return them as a list."""
    chosen = [cost] if isinstance(cost, str) else list(cost)
    if not chosen or (unknown := [name for name in chosen if name not in _COSTS]):
        raise UsageError(f"A cost is one of {', '.join(_COSTS)}, got {unknown[0] if chosen else chosen!r}.")
    for name in chosen:
        if name in _TIMED and (grid.latency is None or name not in grid.latency):
            raise UsageError(f"The grid has no {name}; add the times of the model: {HOW_TO_TIME}.")
    return chosen
