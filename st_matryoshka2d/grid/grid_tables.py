"""The tables of a grid: their columns, checks, and file format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from st_matryoshka2d.files.tables import TableFile
from st_matryoshka2d.sizes import Size

_KINDS = {"task": str, "split": str, "subset": str, "num_layers": int, "dim": int, "metric": str, "score": float}
COLUMNS = [*_KINDS, "is_main"]

# Optional axes with their default values. They are shown only if a grid has other values.
AXES = {"precision": "float32", "truncation": "first", "documents": "same size"}

# Columns that identify a score, besides its metric.
PLACE = ["task", "split", "subset", "num_layers", "dim", *AXES]


class Items(NamedTuple):
    """The parts of a main score: scores of queries, or similarities of pairs with gold scores; see `GridResult`."""

    ids: list[str]
    values: NDArray[np.float64]
    gold: NDArray[np.float64] | None


ITEM_COLUMNS = [*PLACE, *Items._fields]


def axis_labels(axes: Mapping[Any, Any]) -> list[str]:
    """Describe the axes that do not have their default value."""
    words = {**axes, "documents": f"documents at {axes['documents']}"}
    return [words[axis] for axis, plain in AXES.items() if axes[axis] != plain]


FILE = TableFile(
    "GridResult", {**_KINDS, "is_main": bool, **dict.fromkeys(AXES, str)}, {"ids": str, "values": float, "gold": float}
)


def with_items(frame: pd.DataFrame, items: pd.DataFrame) -> pd.DataFrame:
    """Join both tables: items go into the rows of their main scores."""
    return frame.merge(items.assign(is_main=True), on=[*PLACE, "is_main"], how="left")


def without_items(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split a table into the two that `with_items` joined."""
    items = rows[rows["ids"].notna()][ITEM_COLUMNS].copy()
    for name in ("values", "gold"):
        arrays = [None if values is None else np.asarray(values, dtype=float) for values in items[name]]
        items[name] = pd.Series(arrays, items.index, dtype=object)
    return rows[[*COLUMNS, *AXES]], items


def checked(frame: pd.DataFrame, items: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Check both tables and return copies with all columns, in order."""
    if not set(COLUMNS) <= set(frame.columns) <= {*COLUMNS, *AXES}:
        raise ValueError(f"A GridResult has the columns {COLUMNS}, got {list(frame.columns)}.")
    if frame.empty:
        raise ValueError("A GridResult needs at least one score, got none.")
    if missing := set(ITEM_COLUMNS) - set(AXES) - set(items.columns):
        raise ValueError(f"The items of a GridResult have the columns {ITEM_COLUMNS}; {sorted(missing)} are missing.")
    frame, items = (table.assign(**{axis: AXES[axis] for axis in AXES.keys() - {*table}}) for table in (frame, items))
    frame = frame[[*COLUMNS, *AXES]].reset_index(drop=True)
    if twice := repeated(frame):
        raise ValueError(f"Each score may appear only once, but {twice} is repeated.")
    return frame, items[ITEM_COLUMNS].reset_index(drop=True)


def repeated(frame: pd.DataFrame) -> str:
    """Describe the first repeated score; empty if there is none."""
    for row in frame[frame.duplicated([*PLACE, "metric"])].head(1).to_dict("records"):
        size = Size(int(row["num_layers"]), int(row["dim"]))
        return " ".join([f"{row['task']} ({row['split']}, {row['subset']}) at {size}", *axis_labels(row)])
    return ""


def narrowed(frame: pd.DataFrame, column: str, values: Any) -> pd.DataFrame:
    """Select the rows with one or several values in a column; None selects all rows."""
    if values is None:
        return frame
    wanted = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
    if unknown := [value for value in wanted if value not in set(frame[column])]:
        available = ", ".join(map(str, frame[column].unique()))
        raise ValueError(f"There is no {column} {unknown[0]!r} in this grid, only {available}.")
    return frame[frame[column].isin(wanted)]


PER_DOCUMENT = "milliseconds_per_document"


def checked_latency(times: pd.DataFrame, depths: Iterable[int]) -> pd.DataFrame:
    """Check a table of times and return a sorted copy."""
    if not isinstance(times, pd.DataFrame):
        raise TypeError(f"times must be a table such as benchmark_latency(model) returns, got {type(times).__name__}.")
    if missing := {"num_layers", "milliseconds_per_text"} - set(times.columns):
        raise ValueError(
            f"times must have the columns of benchmark_latency(model); {', '.join(sorted(missing))} is missing, "
            f"got {list(times.columns)}."
        )
    known = times["num_layers"].tolist()
    if len(set(known)) < len(known):
        raise ValueError(f"times has a depth more than once: num_layers is {known}.")
    if untimed := sorted({int(depth) for depth in depths} - set(known)):
        raise ValueError(
            f"times has no row for num_layers {', '.join(map(str, untimed))}, which the grid has, only for "
            f"{', '.join(map(str, known))}. Time all depths: benchmark_latency(model)."
        )
    milliseconds = times["milliseconds_per_text"].to_numpy(dtype=float)
    if not (np.isfinite(milliseconds) & (milliseconds > 0)).all():
        raise ValueError(f"milliseconds_per_text must be above 0, got {milliseconds.tolist()}.")
    return times.sort_values("num_layers", ignore_index=True)
