"""Names beside the points of a line, none over another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

__all__ = ["label_points"]

# Where a label may lie: the sides of its point, in the order preferred for a line that rises, and how many of its own
# heights away.
_SIDES = [(-1, 1), (0, 1), (1, -1), (-1, 0), (1, 0), (0, -1), (1, 1), (-0.5, 1), (-1, -1)]
_HEIGHTS_AWAY = range(9)
_GAP = 5.0  # typographic points between the middle of a point and a label that lies close to it


def label_points(
    figure: Figure, axes: Axes, points: NDArray[np.floating], texts: Sequence[str], avoid: NDArray[np.floating]
) -> None:
    """Write a name beside each point of a line, over no other name, with a stroke to it where it lies further away."""
    # The figure must be complete but for names: what moves points or resizes the axes afterwards makes them overlap.
    FigureCanvasAgg(figure)  # knows how large letters are
    figure.draw_without_rendering()
    pixels = figure.dpi / 72
    places, points_of_others = axes.transData.transform(points), axes.transData.transform(avoid)
    lines = np.vstack([places, *(_along(start, end) for start, end in pairwise(places))])
    strokes = np.empty((0, 2))
    taken: list[Bbox] = []
    for point, place, text in zip(points, places, texts, strict=True):
        label = axes.annotate(text, tuple(point), (0, 0), textcoords="offset points", ha="center", va="center", fontsize=8)
        label.set_in_layout(False)  # or the axes would make room for it, and move
        size = np.array(label.get_window_extent().size)
        sides = product(_HEIGHTS_AWAY, _SIDES)
        offsets = [np.array(side) * (size / 2 + _GAP * pixels + away * size[1]) for away, side in sides]
        boxes = [Bbox(np.stack([place + offset - size / 2, place + offset + size / 2])) for offset in offsets]
        inside = axes.get_window_extent()
        flaws = [
            # labels over each other are far worse than one over the edge, and that than one over a point or a line
            10_000 * box.count_overlaps(taken)
            + 1_000 * (_count(_along(place, place + offset), taken) + _count(strokes, [box]) > 0)
            + 1_000 * (_count(box.corners(), [inside]) < 4)
            + 5 * _count(points_of_others, [box.padded(2 * pixels)])
            + 0.8 * _count(lines, [box])
            + 0.4 * rank
            for rank, (box, offset) in enumerate(zip(boxes, offsets, strict=True))
        ]
        best = int(np.argmin(flaws))
        x, y = offsets[best] / pixels
        label.set_position((x, y))
        if best >= len(_SIDES):
            arrow = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "shrinkA": size[1] / pixels / 2, "shrinkB": 4}
            axes.annotate("", tuple(point), (x, y), textcoords="offset points", arrowprops=arrow).set_in_layout(False)
            strokes = np.vstack([strokes, _along(place, place + offsets[best])])
        taken.append(boxes[best].padded(pixels))


def _along(start: NDArray[np.floating], end: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.linspace(start, end, 40)


def _count(points: NDArray[np.floating], boxes: Sequence[Bbox]) -> int:
    """How many points lie in boxes."""
    return sum(int(((points >= box.min) & (points <= box.max)).all(axis=1).sum()) for box in boxes)
