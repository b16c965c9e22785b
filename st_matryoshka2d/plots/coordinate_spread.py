"""Standard deviations along the coordinates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

__all__ = ["spread_panels"]

_COLOURS = ("#0072B2", "#D55E00")


def spread_panels(spreads: Mapping[str, NDArray[np.float64]]) -> Figure:
    """One panel for each model, one above the other.

    The panels share the axis of coordinates but not that of the values, whose unit is the model's own.

    Args:
        spreads: For each title the standard deviation of each coordinate; one or two.
    """
    figure = Figure(figsize=(7.0, 0.4 + 2.4 * len(spreads)), layout="constrained")
    panels = figure.subplots(len(spreads), sharex=True, squeeze=False)[:, 0]
    for axes, (title, values), colour in zip(panels, spreads.items(), _COLOURS, strict=False):
        coordinates = np.arange(1, len(values) + 1)
        axes.plot(coordinates, values, color=colour, linewidth=0.6, alpha=0.45)
        neighbours = max(1, len(values) // 24)
        smooth = np.convolve(values, np.ones(neighbours) / neighbours, mode="valid")
        start = (neighbours + 1) / 2
        axes.plot(start + np.arange(len(smooth)), smooth, color=colour, linewidth=2)
        axes.set(title=title, ylabel="standard deviation", ylim=(0, None))
        axes.margins(x=0.01)
        axes.grid(axis="y", color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel(f"coordinate (thick line: mean of {neighbours} neighbours)")
    return figure
