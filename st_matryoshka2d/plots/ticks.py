"""Which of many places on an axis get a label."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["apart"]


def apart(places: Iterable[float], least: float) -> list[float]:
    """Those places that are far enough from all that come before them.

    Args:
        places: Where labels might stand, the most wanted first.
        least: How far the middles of two labels are apart at least.

    Example:
        >>> apart([0, 10, 4, 1, 9], 3)
        [0, 10, 4]
    """
    kept: list[float] = []
    for place in places:
        if all(abs(place - other) >= least for other in kept):
            kept.append(place)
    return kept
