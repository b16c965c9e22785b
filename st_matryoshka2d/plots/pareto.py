"""Scores of sizes against their costs, with labels on the Pareto front that do not overlap."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain, cycle, product, repeat

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from st_matryoshka2d.plots.saving import save_figure
from st_matryoshka2d.plots.style import apart, new_figure, plain, shades

_AXES = {
    "milliseconds_per_text": "milliseconds per text",
    "num_layers": "layers",
    "parameters": "parameters (millions)",
    "bytes": "bytes per vector",
    "dim": "dimensions",
}
_MARKERS = "osD^vPX*"
_AREAS = (52, 28, 18, 12)  # decreasing, so that points on top hide nothing
_MARGIN = 0.13  # on both sides of the points, as a share of their width
_TICKS_APART = 0.07  # as a share of the axes' width; four digits fit

# Places of a label: side of its point, in order of preference for a rising line, and distance in label heights.
_SIDES = [(-1, 1), (0, 1), (1, -1), (-1, 0), (1, 0), (0, -1), (1, 1), (-0.5, 1), (-1, -1)]
_HEIGHTS_AWAY = range(9)
_GAP = 5.0  # typographic points between the middle of a point and a label that lies close to it


def plot_front(table: pd.DataFrame, column: str, path: str | os.PathLike[str] | None, title: str, metric: str) -> Figure:
    """Draw the rows of `costs`, with a `name`, as points by the cost in `column`, and a line through those of the `front`.

    Colours show dimensions, or layers if the cost depends on dimensions; sizes off the line are pale.
    """
    table = table.assign(x=table[column].astype(float) / (1e6 if column == "parameters" else 1), y=table["score"] * 100)
    front = table["front"]
    figure = new_figure(8.0, 5.2)
    axes = plain(figure.add_subplot(), "both", xlabel=_AXES[column], ylabel=metric, title=title)
    axes.set_axisbelow(True)
    line = table[front].sort_values(["x", "y", "bytes"])
    axes.plot(line["x"], line["y"], color="0.35", linewidth=1.4, zorder=2)
    _points(figure, axes, table, "num_layers" if column in ("bytes", "dim") else "dim", front)
    axes.margins(x=_MARGIN, y=0.17)  # room for labels
    if column in ("bytes", "dim", "num_layers"):
        _ticks(axes, sorted(table["x"].unique()), log=column != "num_layers")
    places = line.groupby(["x", "y"], sort=False)
    others = [f" and {count - 1} more" if count > 1 else "" for count in places.size()]  # at the same place
    names = [name + more for name, more in zip(places.head(1)["name"], others, strict=True)]
    _label_points(figure, axes, np.array(list(places.groups)), names, avoid=table[["x", "y"]].to_numpy())
    save_figure(figure, path)
    return figure


def _ticks(axes: Axes, values: list[float], *, log: bool) -> None:
    """Set a tick at each value, with its number where there is room."""
    if log:
        axes.set_xscale("log", base=2)
    number = dict(zip(np.log2(values) if log else values, values, strict=True))
    places = list(number)
    width = (places[-1] - places[0]) * (1 + 2 * _MARGIN)
    ends_first = dict.fromkeys([places[0], places[-1], *places])
    labelled = [number[place] for place in apart(ends_first, _TICKS_APART * width)]
    axes.set_xticks(labelled, [f"{value:g}" for value in labelled])
    axes.set_xticks([value for value in values if value not in labelled], [], minor=True)


def _points(figure: Figure, axes: Axes, table: pd.DataFrame, colours: str, front: pd.Series[bool]) -> None:
    """Draw the points, and legends of their colours and shapes."""
    values = sorted(table[colours].unique())
    widths = (table["bytes"] / table["dim"]).groupby(table["precision"]).median()
    precisions = list(widths.sort_values(ascending=False).index)
    palette = shades(values)
    shapes = dict(zip(precisions, cycle(_MARKERS), strict=False))
    for (precision, shape), area in zip(shapes.items(), chain(_AREAS, repeat(_AREAS[-1])), strict=False):
        for on_front, alpha in ((False, 0.4), (True, 1.0)):
            rows = table[(table["precision"] == precision) & (front == on_front)]
            inks = [palette[value] for value in rows[colours]]
            look = {"marker": shape, "alpha": alpha, "s": area, "edgecolors": "white", "linewidths": 0.6, "zorder": 3}
            axes.scatter("x", "y", data=rows, c=inks, **look)
    dots = [Line2D([], [], linestyle="", marker="o", color=palette[value], label=str(value)) for value in values[::-1]]
    figure.legend(handles=dots, title=_AXES[colours], loc="outside right upper", frameon=False)
    marks = [Line2D([], [], linestyle="", marker=shape, color="0.35", label=name) for name, shape in shapes.items()]
    pale = Line2D([], [], linestyle="", marker="o", color="0.35", alpha=0.4, label="beaten")
    if handles := [*(marks if len(marks) > 1 else []), *([] if front.all() else [pale])]:
        figure.legend(handles=handles, loc="outside right lower", frameon=False)


def _label_points(
    figure: Figure, axes: Axes, points: NDArray[np.floating], texts: Sequence[str], avoid: NDArray[np.floating]
) -> None:
    """Label each point of a line without overlaps, with a stroke to labels that are further away."""
    # Call this last: if points move or the axes change size afterwards, labels overlap.
    FigureCanvasAgg(figure)  # measures text
    figure.draw_without_rendering()
    pixels = figure.dpi / 72
    inside, places, others = axes.get_window_extent(), axes.transData.transform(points), axes.transData.transform(avoid)
    line = np.vstack([places, *map(_along, places, places[1:])])
    strokes = np.empty((0, 2))
    taken: list[Bbox] = []
    for point, place, text in zip(points, places, texts, strict=True):
        label = axes.annotate(text, tuple(point), (0, 0), textcoords="offset points", ha="center", va="center", fontsize=8)
        label.set_in_layout(False)  # the axes must not move to make room for it
        size = np.array(label.get_window_extent().size)
        sides = product(_HEIGHTS_AWAY, np.array(_SIDES))
        offsets = [side * (size / 2 + _GAP * pixels + away * size[1]) for away, side in sides]
        boxes = [Bbox.from_bounds(*(place + offset - size / 2), *size) for offset in offsets]
        ways = [_along(place, place + offset) for offset in offsets]
        flaws = [
            # overlapping labels are far worse than one over the edge, which is worse than one over a point or a line
            10_000 * box.count_overlaps(taken)
            + 1_000 * (_count(way, taken) + _count(strokes, [box]) > 0)
            + 1_000 * (_count(box.corners(), [inside]) < 4)
            + 5 * _count(others, [box.padded(2 * pixels)])
            + 0.8 * _count(line, [box])
            + 0.4 * rank
            for rank, (box, way) in enumerate(zip(boxes, ways, strict=True))
        ]
        best = int(np.argmin(flaws))
        x, y = offsets[best] / pixels
        label.set_position((x, y))
        if best >= len(_SIDES):
            arrow = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "shrinkA": size[1] / pixels / 2, "shrinkB": 4}
            axes.annotate("", tuple(point), (x, y), textcoords="offset points", arrowprops=arrow).set_in_layout(False)
            strokes = np.vstack([strokes, ways[best]])
        taken.append(boxes[best].padded(pixels))


def _along(start: NDArray[np.floating], end: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.linspace(start, end, 40)


def _count(points: NDArray[np.floating], boxes: Sequence[Bbox]) -> int:
    """Count the points that lie in boxes."""
    return sum(int(((points >= box.min) & (points <= box.max)).all(axis=1).sum()) for box in boxes)
