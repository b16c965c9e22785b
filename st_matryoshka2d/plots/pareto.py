"""Scores of sizes against one cost, with a line through the Pareto front."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from st_matryoshka2d.plots.style import apart, new_figure, plain, shades

_AXES = {
    "milliseconds_per_text": "milliseconds per text",
    "num_layers": "layers",
    "parameters": "parameters (millions)",
    "bytes": "bytes per vector",
    "dim": "dimensions",
}


def plot_front(table: pd.DataFrame, column: str, title: str, metric: str) -> Figure:
    """Draw the rows of `costs` by the cost in `column`, and name those of the `front`."""
    x = table[column].astype(float) / (1e6 if column == "parameters" else 1)
    table = table.assign(x=x, y=table["score"] * 100)
    figure = new_figure(8.0, 5.2)
    axes = plain(figure.add_subplot(), "both", xlabel=_AXES[column], ylabel=metric, title=title)
    line = table[table["front"]].sort_values(["x", "y", "bytes"])
    axes.plot(line["x"], line["y"], color="0.35", linewidth=1.4)
    by = "num_layers" if column in ("bytes", "dim") else "dim"  # which the cost does not show
    inks = shades(sorted(table[by].unique()))
    precisions = dict.fromkeys(table.sort_values("bytes", ascending=False)["precision"])
    shapes = dict(zip(precisions, "osD^vPX*", strict=False))
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
        there_are = {float(_place(axes, value)[0]): value for value in sorted(x, reverse=True)}
        ticks = [there_are[place] for place in apart(there_are, 0.07)]  # the largest in any case
        axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
        axes.set_xticks([], minor=True)
    _name(axes, line)
    return figure


def _place(axes: Axes, x: float, y: float = 0) -> NDArray[Any]:
    """Return where a point is, as shares of the width and the height of the axes."""
    return np.asarray(axes.transLimits.transform(axes.transScale.transform((x, y))))


def _name(axes: Axes, line: pd.DataFrame) -> None:
    """Name points of a rising line, slanted away from it: the best first, where there is room."""
    taken: list[NDArray[Any]] = []
    for _, sizes in reversed(list(line.groupby(["x", "y"], sort=False))):
        x, y, name = sizes[["x", "y", "name"]].iloc[0]
        place = _place(axes, x, y)
        if all(np.abs(place - other).sum() > 0.05 for other in taken):
            taken.append(place)
            text = name + (f" and {len(sizes) - 1} more" if len(sizes) > 1 else "")
            words: dict[str, Any] = {"ha": "right", "va": "bottom", "rotation": -35, "rotation_mode": "anchor"}
            axes.annotate(text, (x, y), (-3, 3), textcoords="offset points", fontsize=8, **words)
