"""What all figures share: axes, colours, and which labels have room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Of Okabe and Ito's, which most colour-blind readers can tell apart.
BLUE, ORANGE = "#0072B2", "#D55E00"

Value = TypeVar("Value")


def new_figure(width: float, height: float) -> Figure:
    """A figure of so many inches, whose parts make room for each other."""
    return Figure(figsize=(width, height), layout="constrained")


def plain(axes: Axes, grid: Literal["both", "x", "y"] = "y") -> Axes:
    """Axes with a pale grid, without a frame above and to the right."""
    axes.grid(axis=grid, color="0.93")
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def add_note(figure: Figure, text: str) -> None:
    """Small letters below the figure."""
    figure.supxlabel(text, fontsize=7.5, color="0.3")


def shades(values: Sequence[Value]) -> dict[Value, Any]:
    """A colour for each value, the last darkest; the palest tenth of the map is left out, hard to see on white."""
    return dict(zip(values, colormaps["viridis_r"](np.linspace(0.1, 1, len(values))), strict=True))


def apart(places: Iterable[float], least: float) -> list[float]:
    """Those places, the most wanted first, that are far enough from all that come before them."""
    kept: list[float] = []
    for place in places:
        if all(abs(place - other) >= least for other in kept):
            kept.append(place)
    return kept
