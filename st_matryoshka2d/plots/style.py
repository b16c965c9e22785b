"""Axes, colours and spacing of labels in all figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, which most colour-blind readers can distinguish.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


def new_figure(width: float, height: float) -> Figure:
    """Create a figure of this size in inches, whose parts do not overlap."""
    return Figure(figsize=(width, height), layout="constrained")


def plain(axes: Axes, grid: Literal["both", "x", "y"] = "y", **labels: str) -> Axes:
    """Give axes a pale grid and their labels, and remove the frame above and to the right."""
    axes.grid(axis=grid, color="0.93")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(**labels)
    return axes


def apart(places: Iterable[float], least: float) -> list[float]:
    """Choose from places, given by priority, those that are at least this far from all chosen before."""
    chosen: list[float] = []
    for place in places:
        if all(abs(place - other) >= least for other in chosen):
            chosen.append(place)
    return chosen
