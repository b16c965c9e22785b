"""Axes, colours and spacing of labels in all figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
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


def shades(values: Sequence[Any]) -> dict[Any, Any]:
    """Return a colour for each value, the last darkest; none too pale to be seen on white."""
    return dict(zip(values, colormaps["viridis_r"](np.linspace(0.1, 1, len(values))), strict=True))


def apart(places: Iterable[float], least: float) -> list[float]:
    """Keep the places, given by priority, that are at least this far from all kept before."""
    kept: list[float] = []
    for place in places:
        if all(abs(place - other) >= least for other in kept):
            kept.append(place)
    return kept
