"""Curves along the coordinates: scores as coordinates are removed, and the spread of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from st_matryoshka2d.plots.style import BLUE, GREEN, ORANGE, apart, new_figure, plain

# Legend and style of each method, in Okabe and Ito's colours.
_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "first": ("first coordinates", {"color": BLUE, "marker": "o", "zorder": 3}),
    "random": ("random coordinates", {"color": ORANGE, "linestyle": "--"}),
    "window": ("windows", {"color": GREEN, "linestyle": "-."}),
    "pca": ("principal components", {"color": "#CC79A7", "marker": "s"}),
}


def truncation_curves(summary: pd.DataFrame, full_dim: int, *, title: str) -> Figure:
    """Draw the relative score of every method for one model, from `TruncationResult.summary`."""
    figure = new_figure(7.0, 5.0)
    label = "score relative to the full size (%)"
    axes = plain(figure.add_subplot(), xlabel="coordinates removed (%)", ylabel=label)
    axes.axhline(100, color="0.4", linewidth=1.0, linestyle=":", zorder=1)
    for method, (name, style) in _METHODS.items():
        rows = summary[summary["method"] == method]
        if not rows.empty:
            runs = int(rows["runs"].max())
            many = f" ({runs}, mean ± s.d.)" if runs > 1 else ""
            _curve(axes, rows, full_dim, label=name + many, **style)
    _dims_on_top(axes, summary["dim"], full_dim)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(title, fontsize="medium")
    return figure


def spread_curve(values: NDArray[np.float64], title: str) -> Figure:
    """Draw the standard deviation of each coordinate, and a moving average."""
    figure = new_figure(7.0, 2.8)
    axes = figure.add_subplot()
    axes.plot(np.arange(1, len(values) + 1), values, color=BLUE, linewidth=0.6, alpha=0.45)
    n = max(1, len(values) // 24)
    smooth = np.convolve(values, np.ones(n) / n, mode="valid")
    axes.plot((n + 1) / 2 + np.arange(len(smooth)), smooth, color=BLUE, linewidth=2)
    words = f"coordinate (thick line: mean of {n} neighbours)"
    plain(axes, xlabel=words, ylabel="standard deviation", title=title).set_ylim(bottom=0)
    axes.margins(x=0.01)
    return figure


def _curve(axes: Axes, rows: pd.DataFrame, full_dim: int, **style: Any) -> None:
    """Draw a line through means, with a band of one standard deviation if there is one."""
    ordered = rows.sort_values("dim", ascending=False)
    removed = 100 * (1 - ordered["dim"].to_numpy() / full_dim)
    mean, spread = (100 * ordered[name].to_numpy() for name in ("relative", "std"))
    axes.plot(removed, mean, markersize=4, linewidth=1.6, **style)
    if np.isfinite(spread).any():
        look = {"color": style["color"], "alpha": 0.18, "linewidth": 0}
        axes.fill_between(removed, mean - spread, mean + spread, **look)


def _dims_on_top(axes: Axes, dims: pd.Series[int], full_dim: int) -> None:
    """Label the top axis with dims, powers of two before others where there is no room for all."""
    wanted = sorted({full_dim, *map(int, dims)}, key=lambda dim: (dim != full_dim, dim & (dim - 1) != 0, -dim))
    shown = apart(wanted, 0.045 * full_dim)
    top = axes.secondary_xaxis("top")
    places = [100 * (1 - dim / full_dim) for dim in shown]
    top.set_xticks(places, [f"{dim:g}" for dim in shown], fontsize="small")
    top.tick_params(length=2, color="0.8")
    top.spines[:].set_visible(False)
    top.set_xlabel("dimensions kept")
