"""Scores of sizes against one cost, with a line through the Pareto front."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

from st_matryoshka2d.plots.style import apart, new_figure, plain

_AXES = {
    "milliseconds_per_text": "milliseconds per text",
    "num_layers": "layers",
    "parameters": "parameters (millions)",
    "megabytes": "megabytes of a file",
    "bytes": "bytes per vector",
    "dim": "dimensions",
}


def plot_front(table: pd.DataFrame, column: str, title: str, metric: str) -> Figure:
    """Draw the rows of `costs` by the cost in `column`, and name those of the `front`."""
    table = table.assign(x=table[column].astype(float) / (1e6 if column == "parameters" else 1), y=table["score"] * 100)
    figure = new_figure(8.0, 5.2)
    axes = plain(figure.add_subplot(), "both", xlabel=_AXES[column], ylabel=metric, title=title)
    line = table[table["front"]].sort_values(["x", "y", "bytes"])
    axes.plot(line["x"], line["y"], color="0.35", linewidth=1.4)
    by = "num_layers" if column in ("bytes", "dim") else "dim"  # which the cost does not show
    shades = colormaps["viridis_r"](np.linspace(0.1, 1, table[by].nunique()))  # none too pale on white
    inks = dict(zip(sorted(table[by].unique()), shades, strict=True))
    shapes = dict(zip(table.sort_values("bytes", ascending=False)["precision"].unique(), "osD^vPX*", strict=False))
    for row in table.to_dict("records"):
        look: dict[str, Any] = {"color": inks[row[by]], "alpha": 1 if row["front"] else 0.35, "zorder": 3}
        axes.scatter(row["x"], row["y"], marker=shapes[row["precision"]], s=40, **look)
    dots = [Line2D([], [], linestyle="", marker="o", color=ink, label=key) for key, ink in inks.items()]
    figure.legend(handles=dots[::-1], title=_AXES[by], loc="outside right upper", frameon=False)
    if len(shapes) > 1:
        marks = [Line2D([], [], linestyle="", marker=mark, color="0.35", label=key) for key, mark in shapes.items()]
        figure.legend(handles=marks, loc="outside right lower", frameon=False)
    axes.margins(x=0.13, y=0.17)  # room for names
    if column in ("bytes", "dim"):
        axes.set_xscale("log", base=2)
    if column in ("bytes", "dim", "num_layers"):
        values = np.sort(table["x"].unique())[::-1]
        places = dict(zip(_places(axes, values, 0)[:, 0], values, strict=True))
        ticks = [places[place] for place in apart(places, 0.07)]  # the largest in any case
        axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
        axes.set_xticks([], minor=True)
    _name(axes, line)
    return figure


def _places(axes: Axes, x: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
    """Return where points are, (points, 2), as shares of the width and the height of the axes."""
    points = np.column_stack(np.broadcast_arrays(x, y))
    return np.asarray(axes.transLimits.transform(axes.transScale.transform(points)))


def _name(axes: Axes, line: pd.DataFrame) -> None:
    """Name points of a rising line, slanted away from it: the best first, where there is room."""
    names = line.groupby(["x", "y"], sort=False)["name"].agg(["first", "size"]).reset_index()[::-1]
    taken: list[NDArray[np.float64]] = []
    for place, (x, y, name, number) in zip(_places(axes, names["x"], names["y"]), names.to_numpy(), strict=True):
        if all(np.abs(place - other).sum() > 0.05 for other in taken):
            taken.append(place)
            text = f"{name} and {number - 1} more" if number > 1 else name
            slanted: dict[str, Any] = {"ha": "right", "va": "bottom", "rotation": -35, "rotation_mode": "anchor"}
            axes.annotate(text, (x, y), (-3, 3), textcoords="offset points", fontsize=8, **slanted)
