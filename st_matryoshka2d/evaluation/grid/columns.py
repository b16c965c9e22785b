"""The columns of a grid."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["AXES", "CELL", "COLUMNS", "ITEM_COLUMNS", "told"]

COLUMNS = ["task", "split", "subset", "num_layers", "dim", "metric", "score", "is_main"]

# More axes, and what a plain grid has there. They are shown only where a grid has something else.
AXES = {"precision": "float32", "truncation": "first", "documents": "same size"}


def told(axes: Mapping[str, str]) -> list[str]:
    """What of these axes does not go without saying, in words.

    Args:
        axes: Values by axis.
    """
    words = {"documents": "documents at {}"}
    return [words.get(axis, "{}").format(axes[axis]) for axis, plain in AXES.items() if axes[axis] != plain]


# What one number of a metric belongs to.
CELL = ["task", "split", "subset", "num_layers", "dim", *AXES]

ITEM_COLUMNS = [*CELL, "ids", "values", "gold"]
