"""What two grids have in common."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from st_matryoshka2d.evaluation.grid import pivots
from st_matryoshka2d.evaluation.grid.columns import told
from st_matryoshka2d.evaluation.significance.which_test import Items
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    from st_matryoshka2d.evaluation.grid.result import GridResult

__all__ = ["Cell", "at_the_size_of", "cell_of", "items_by_cell", "joined", "names"]

_PART = ["task", "split", "subset"]
_CELL = [*_PART, "num_layers", "dim"]


class Cell(NamedTuple):
    """What a score of a plain grid belongs to."""

    task: str
    split: str
    subset: str
    size: Size

    def __str__(self) -> str:
        return f"{self.task} ({self.split}, {self.subset}) at {self.size}"


def cell_of(row: Mapping[Hashable, Any]) -> Cell:
    """The cell of a row of a grid's frame or items.

    Args:
        row: The row by column.
    """
    return Cell(row["task"], row["split"], row["subset"], Size(int(row["num_layers"]), int(row["dim"])))


def at_the_size_of(grid: GridResult, other: GridResult) -> GridResult:
    """The other as if scored at the size of the first, where each has a single one: so two sizes can be compared.

    Args:
        grid: A plain grid.
        other: Another.
    """
    if not _single_sizes(grid, other):
        return other
    size = {"num_layers": grid.sizes[0].num_layers, "dim": grid.sizes[0].dim}
    return replace(other, frame=other.frame.assign(**size), items=other.items.assign(**size), latency=None)


def joined(grid: GridResult, other: GridResult) -> pd.DataFrame:
    """The main scores of both at the sizes that both have, in the order of the first: `score` and `other_score`.

    Args:
        grid: A plain grid.
        other: Another.

    Raises:
        ValueError: The grids have no size in common, or differ in tasks, splits, subsets or main metrics.
    """
    ours, theirs = (one.frame[one.frame["is_main"]][[*_CELL, "metric", "score"]] for one in (grid, other))
    _same(ours, theirs, _PART[:1], " Compare the tasks of both, `grid.at(tasks=...)`.")
    _same(ours, theirs, [*_PART, "metric"])
    table = ours.merge(theirs.rename(columns={"score": "other_score"}), on=[*_CELL, "metric"])
    if table.empty:
        first, second = (", ".join(map(str, one.sizes)) for one in (grid, other))
        raise ValueError(f"The grids have no size in common: the first has {first}; the other has {second}.")
    return table


def items_by_cell(grid: GridResult) -> dict[Cell, Items]:
    """What the main scores are made of.

    Args:
        grid: A plain grid.
    """
    found = {}
    for row in grid.items.to_dict("records"):
        gold = None if row["gold"] is None or isinstance(row["gold"], float) else np.asarray(row["gold"], dtype=float)
        found[cell_of(row)] = Items(list(row["ids"]), np.asarray(row["values"], dtype=float), gold)
    return found


def names(grid: GridResult, other: GridResult) -> tuple[str, str]:
    """What tells the two apart: model, precision and truncation, size if each has another one, or else their places.

    Args:
        grid: A plain grid.
        other: Another.
    """
    first, second = _name(grid), _name(other)
    if _single_sizes(grid, other):
        first, second = (f"{name} {one.sizes[0]}".strip() for name, one in ((first, grid), (second, other)))
    if first == second:
        first, second = f"{first} (first)" if first else "", f"{second} (other)" if second else ""
    return first or "first", second or "other"


def _single_sizes(grid: GridResult, other: GridResult) -> bool:
    return len(grid.sizes) == len(other.sizes) == 1 and grid.sizes != other.sizes


def _name(grid: GridResult) -> str:
    return " ".join([grid.model.rsplit("/", 1)[-1], *told(pivots.shown(grid.frame))]).strip()


def _same(ours: pd.DataFrame, theirs: pd.DataFrame, columns: list[str], hint: str = "") -> None:
    first, second = (set(one[columns].itertuples(index=False, name=None)) for one in (ours, theirs))
    if alone := sorted(first ^ second):
        place = "first" if alone[0] in first else "other"
        what = ", ".join(f"{column} {value}" for column, value in zip(columns, alone[0], strict=True))
        raise ValueError(f"The grids were not scored alike: only the {place} has {what}.{hint}")
