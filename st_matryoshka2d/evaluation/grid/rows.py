"""The two tables of a grid: checked, narrowed, joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from st_matryoshka2d.evaluation.grid.columns import AXES, CELL, COLUMNS, ITEM_COLUMNS, told
from st_matryoshka2d.sizes import Size

__all__ = ["checked", "common_latency", "joined", "narrowed"]


def checked(frame: pd.DataFrame, items: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Copies with every column there is, in one order.

    Args:
        frame: The scores; axes that are missing are plain.
        items: What they are made of.

    Raises:
        ValueError: Columns are missing or unknown, there are no rows, or a score is there twice.
    """
    if not set(COLUMNS) <= set(frame.columns) <= {*COLUMNS, *AXES}:
        raise ValueError(f"A GridResult has the columns {COLUMNS}, got {list(frame.columns)}.")
    if frame.empty:
        raise ValueError("A GridResult needs at least one score, got none.")
    if missing := set(ITEM_COLUMNS) - set(AXES) - set(items.columns):
        raise ValueError(f"The items of a GridResult have the columns {ITEM_COLUMNS}; {sorted(missing)} are missing.")
    frame = frame.assign(**{axis: plain for axis, plain in AXES.items() if axis not in frame})
    items = items.assign(**{axis: plain for axis, plain in AXES.items() if axis not in items})
    frame = frame[[*COLUMNS, *AXES]].reset_index(drop=True)
    if (repeated := frame.duplicated([*CELL, "metric"])).any():
        row = frame[repeated].iloc[0]
        raise ValueError(f"Each score can be there only once; {row['metric']} of {_place(row)} is repeated.")
    return frame, items[ITEM_COLUMNS].reset_index(drop=True)


def narrowed(
    frame: pd.DataFrame, items: pd.DataFrame, column: str, values: str | int | Sequence[str] | Sequence[int] | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows that have one of some values in a column.

    Args:
        frame: The scores.
        items: What they are made of.
        column: For example `"task"`.
        values: One or several of its values; None for all.

    Raises:
        ValueError: No score has such a value.
    """
    if values is None:
        return frame, items
    kept = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
    if unknown := [value for value in kept if value not in set(frame[column])]:
        there = ", ".join(map(str, frame[column].unique()))
        raise ValueError(f"There is no {column} {unknown[0]!r} here; there are {there}.")
    return frame[frame[column].isin(kept)], items[items[column].isin(kept)]


def joined(
    tables: Sequence[tuple[pd.DataFrame, pd.DataFrame]],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of several grids in one.

    Args:
        tables: Scores and items of each grid.

    Raises:
        ValueError: Two of them have a score in common.
    """
    frame = pd.concat([frame for frame, _ in tables], ignore_index=True)
    if (repeated := frame.duplicated([*CELL, "metric"])).any():
        raise ValueError(
            f"{_place(frame[repeated].iloc[0])} is in two of these grids. Drop it from one: "
            "`grid.at(tasks=..., num_layers=..., dims=...)` keeps what you name."
        )
    with_items = [items for _, items in tables if not items.empty]
    return frame, pd.concat(with_items, ignore_index=True) if with_items else tables[0][1]


def common_latency(latencies: Sequence[pd.DataFrame | None]) -> pd.DataFrame | None:
    """The one table of times among those of several grids.

    Args:
        latencies: Of each grid; None where it has none.

    Raises:
        ValueError: Two of them differ.
    """
    known = [latency for latency in latencies if latency is not None]
    if any(not latency.equals(known[0]) for latency in known):
        raise ValueError(
            "These grids have different latencies, and a grid has one: merge them without, `replace(grid, latency=None)`, "
            "and give the times of one machine to the result with `with_latency`."
        )
    return known[0] if known else None


def _place(row: Any) -> str:
    size = Size(int(row["num_layers"]), int(row["dim"]))
    return " ".join([f"{row['task']} ({row['split']}, {row['subset']}) at {size}", *told(row)])
