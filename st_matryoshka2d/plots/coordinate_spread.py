"""Standard deviations along the coordinates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from st_matryoshka2d.plots.style import BLUE, ORANGE, new_figure, plain

__all__ = ["spread_panels"]


def spread_panels(spreads: Mapping[str, NDArray[np.float64]]) -> Figure:
    """A panel for the standard deviations of each title's model, one above the other, each in that model's own unit."""
    figure = new_figure(7.0, 0.4 + 2.4 * len(spreads))
    panels = figure.subplots(len(spreads), sharex=True, squeeze=False)[:, 0]
    for axes, (title, values), colour in zip(panels, spreads.items(), (BLUE, ORANGE), strict=False):
        coordinates = np.arange(1, len(values) + 1)
        axes.plot(coordinates, values, color=colour, linewidth=0.6, alpha=0.45)
        neighbours = max(1, len(values) // 24)
        smooth = np.convolve(values, np.ones(neighbours) / neighbours, mode="valid")
        start = (neighbours + 1) / 2
        axes.plot(start + np.arange(len(smooth)), smooth, color=colour, linewidth=2)
        axes.set(title=title, ylabel="standard deviation", ylim=(0, None))
        axes.margins(x=0.01)
        plain(axes)
        axes.set_xlabel(f"coordinate (thick line: mean of {neighbours} neighbours)")
    return figure
