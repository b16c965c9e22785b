"""What sizes score against what they cost."""

from __future__ import annotations

import os
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from st_matryoshka2d.evaluation.choice.cost import costs, name_of, vector_bytes
from st_matryoshka2d.evaluation.choice.pareto import checked_costs, on_front, time_column
from st_matryoshka2d.evaluation.grid import pivots
from st_matryoshka2d.plots.labels import label_points

if TYPE_CHECKING:
    from st_matryoshka2d.evaluation.grid.result import GridResult

__all__ = ["pareto_plot", "plot_pareto"]

_AXES = {
    "milliseconds_per_text": "milliseconds a text",
    "num_layers": "layers",
    "parameters": "parameters (millions)",
    "bytes": "bytes a vector",
    "dim": "dimensions",
}
_MARKERS = "osD^vPX*"


def plot_pareto(
    grid: GridResult, path: str | os.PathLike[str] | None, title: str | None, cost: str | None, task: str | None
) -> Figure:
    """Draw as `GridResult.plot_pareto` says.

    Args:
        grid: The scores.
        path: Where to save the figure; None saves nothing.
        title: None for the name of the task.
        cost: The horizontal axis; None for the time.
        task: Name of one task; None for the mean over tasks.

    Raises:
        ValueError: There is no such cost or task, or no size has a score.
    """
    (column,) = checked_costs(grid, time_column(grid) if cost is None else cost)
    table = costs(grid, task).dropna(subset="score")
    if table.empty:
        raise ValueError("No size of this grid has a score, so there is nothing to draw.")
    figure = pareto_plot(
        table,
        column,
        title=title if title is not None else pivots.subject([task] if task else grid.tasks),
        label=f"{pivots.metric_name(grid.frame, task)} (%)",
    )
    if path is not None:
        figure.savefig(path, dpi=200, bbox_inches="tight")
    return figure


def pareto_plot(table: pd.DataFrame, cost: str, *, title: str, label: str) -> Figure:
    """Draw every size as a point, and a line through those that nothing of the same cost or less outscores.

    Colours are dimensions, or layers where the cost is of dimensions. A point is pale where another size is at least as good
    in score, in this cost and in bytes, and better in one of them.

    Args:
        table: What `costs` makes, without sizes that have no score.
        cost: Which column is the horizontal axis.
        title: Above the figure.
        label: What the scores are.
    """
    table = table.assign(x=table[cost].astype(float) / (1e6 if cost == "parameters" else 1), y=table["score"] * 100)
    figure = Figure(figsize=(8.0, 5.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=_AXES[cost], ylabel=label, title=title)
    axes.grid(color="0.93")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    line = table[on_front(table, [cost])].sort_values(["x", "y"])
    axes.plot(line["x"], line["y"], color="0.35", linewidth=1.4, zorder=2)
    colours = "num_layers" if cost in ("bytes", "dim") else "dim"
    _points(axes, table, colours, on_front(table, sorted({cost, "bytes"})))
    if colours == "num_layers":
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.13, y=0.17)  # room for labels
    names = [name_of(row) for row in line.itertuples()]
    label_points(figure, axes, line[["x", "y"]].to_numpy(), names, avoid=table[["x", "y"]].to_numpy())
    return figure


def _points(axes: Axes, table: pd.DataFrame, colours: str, front: pd.Series[bool]) -> None:
    """The points, and legends of what their colours and shapes mean."""
    values, precisions = (
        sorted(table[colours].unique()),
        sorted(table["precision"].unique(), key=partial(vector_bytes, 8), reverse=True),
    )
    # the palest tenth of the map is hard to see on white
    palette = dict(zip(values, colormaps["viridis_r"](np.linspace(0.1, 1, len(values))), strict=True))
    shapes = dict(zip(precisions, cycle(_MARKERS), strict=False))
    for precision, shape in shapes.items():
        for kept, alpha in ((False, 0.3), (True, 1.0)):
            rows = table[(table["precision"] == precision) & (front == kept)]
            axes.scatter(
                rows["x"],
                rows["y"],
                c=[palette[value] for value in rows[colours]],
                marker=shape,
                alpha=alpha,
                s=34,
                zorder=3,
            )
    dots = [Line2D([], [], linestyle="", marker="o", color=palette[value], label=str(value)) for value in values[::-1]]
    first = axes.legend(handles=dots, title=_AXES[colours], loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    marks = [Line2D([], [], linestyle="", marker=shape, color="0.35", label=name) for name, shape in shapes.items()]
    pale = Line2D([], [], linestyle="", marker="o", color="0.35", alpha=0.3, label="dominated")
    told = [*(marks if len(marks) > 1 else []), *([] if front.all() else [pale])]
    axes.legend(handles=told, loc="lower left", bbox_to_anchor=(1.01, 0.0), frameon=False)
    axes.add_artist(first)
