"""What sizes score against what they cost."""

from __future__ import annotations

import os
from functools import partial
from itertools import chain, cycle, repeat
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from st_matryoshka2d.evaluation import pivots
from st_matryoshka2d.evaluation.choose import checked_costs, on_front, time_column
from st_matryoshka2d.evaluation.pivots import costs, name_of, vector_bytes
from st_matryoshka2d.plots.labels import label_points
from st_matryoshka2d.plots.saving import check_ending, save_figure
from st_matryoshka2d.plots.style import add_note, apart, new_figure, plain, shades

if TYPE_CHECKING:
    from st_matryoshka2d.evaluation.scores import Scores

__all__ = ["plot_pareto"]

_AXES = {
    "milliseconds_per_text": "milliseconds a text",
    "num_layers": "layers",
    "parameters": "parameters (millions)",
    "bytes": "bytes a vector",
    "dim": "dimensions",
}
_MARKERS = "osD^vPX*"
_AREAS = (52, 28, 18, 12)  # each smaller than the one before, so that what lies on top hides nothing
_MARGIN = 0.13  # on both sides of the points, of the width that they take
_TICKS_APART = 0.07  # of the width of the axes; four digits have room


def plot_pareto(
    grid: Scores, path: str | os.PathLike[str] | None, title: str | None, cost: str | None, task: str | None
) -> Figure:
    """Every size as a point, and a line through those that nothing of the same cost or less outscores.

    Colours are dimensions, or layers where the cost is of dimensions; sizes off the line are pale.
    """
    check_ending(path)
    (column,) = checked_costs(grid, time_column(grid) if cost is None else cost)
    table = costs(grid.frame, grid.latency, task).dropna(subset="score")
    if table.empty:
        raise ValueError("No size of this grid has a score, so there is nothing to draw.")
    table = table.assign(x=table[column].astype(float) / (1e6 if column == "parameters" else 1), y=table["score"] * 100)
    figure = new_figure(8.0, 5.2)
    axes = plain(figure.add_subplot(), "both")
    axes.set_axisbelow(True)
    title = pivots.subject([task] if task else grid.tasks) if title is None else title
    axes.set(xlabel=_AXES[column], ylabel=f"{pivots.metric_name(grid.frame, task)} (%)", title=title)
    add_note(figure, grid.model)
    front = on_front(table, [column])
    line = table[front].sort_values(["x", "y", "bytes"])
    axes.plot(line["x"], line["y"], color="0.35", linewidth=1.4, zorder=2)
    _points(figure, axes, table, "num_layers" if column in ("bytes", "dim") else "dim", front)
    axes.margins(x=_MARGIN, y=0.17)  # room for labels
    if column in ("bytes", "dim", "num_layers"):
        _ticks(axes, sorted(table["x"].unique()), log=column != "num_layers")
    places = line.groupby(["x", "y"], sort=False)
    names = [_names([name_of(row) for row in rows.itertuples()]) for _, rows in places]
    label_points(figure, axes, np.array(list(places.groups)), names, avoid=table[["x", "y"]].to_numpy())
    save_figure(figure, path)
    return figure


def _names(names: list[str]) -> str:
    """One label for all sizes that lie at one place."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _ticks(axes: Axes, values: list[float], *, log: bool) -> None:
    """A tick at each value that there is, and its number where there is room."""
    if log:
        axes.set_xscale("log", base=2)
    number = dict(zip(np.log2(values) if log else values, values, strict=True))
    places = list(number)
    width = (places[-1] - places[0]) * (1 + 2 * _MARGIN)
    ends_first = dict.fromkeys([places[0], places[-1], *places])
    told = [number[place] for place in apart(ends_first, _TICKS_APART * width)]
    axes.set_xticks(told, [f"{value:g}" for value in told])
    axes.set_xticks([value for value in values if value not in told], [], minor=True)


def _points(figure: Figure, axes: Axes, table: pd.DataFrame, colours: str, front: pd.Series[bool]) -> None:
    """The points, and legends of what their colours and shapes mean."""
    values = sorted(table[colours].unique())
    precisions = sorted(table["precision"].unique(), key=partial(vector_bytes, 8), reverse=True)
    palette = shades(values)
    shapes = dict(zip(precisions, cycle(_MARKERS), strict=False))
    for (precision, shape), area in zip(shapes.items(), chain(_AREAS, repeat(_AREAS[-1])), strict=False):
        for kept, alpha in ((False, 0.4), (True, 1.0)):
            rows = table[(table["precision"] == precision) & (front == kept)]
            axes.scatter(
                rows["x"],
                rows["y"],
                c=[palette[value] for value in rows[colours]],
                marker=shape,
                alpha=alpha,
                s=area,
                edgecolors="white",
                linewidths=0.6,
                zorder=3,
            )
    dots = [Line2D([], [], linestyle="", marker="o", color=palette[value], label=str(value)) for value in values[::-1]]
    figure.legend(handles=dots, title=_AXES[colours], loc="outside right upper", frameon=False)
    marks = [Line2D([], [], linestyle="", marker=shape, color="0.35", label=name) for name, shape in shapes.items()]
    pale = Line2D([], [], linestyle="", marker="o", color="0.35", alpha=0.4, label="dominated")
    if told := [*(marks if len(marks) > 1 else []), *([] if front.all() else [pale])]:
        figure.legend(handles=told, loc="outside right lower", frameon=False)
