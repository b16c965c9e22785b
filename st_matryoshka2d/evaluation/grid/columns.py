"""The columns of a grid."""

from __future__ import annotations

__all__ = ["AXES", "CELL", "COLUMNS", "ITEM_COLUMNS"]

COLUMNS = ["task", "split", "subset", "num_layers", "dim", "metric", "score", "is_main"]

# Two more axes, and what a plain grid has there. They are shown only where a grid has something else.
AXES = {"precision": "float32", "truncation": "first"}

# What one number of a metric belongs to.
CELL = ["task", "split", "subset", "num_layers", "dim", *AXES]

ITEM_COLUMNS = [*CELL, "ids", "values", "gold"]
