"""The tables of a grid: their columns, checks, and file format."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.files.tables import TableFile
from st_matryoshka2d.sizes import Size

_KINDS = {"task": str, "split": str, "subset": str, "num_layers": int, "dim": int, "metric": str, "score": float}
COLUMNS = [*_KINDS, "is_main"]

# Optional axes with their default values. They are shown only if a grid has other values.
AXES = {"precision": "float32", "truncation": "first", "documents": "same size"}

# Columns that identify a score, besides its metric.
PLACE = ["task", "split", "subset", "num_layers", "dim", *AXES]


class Items(NamedTuple):
    """The parts of a score: scores of queries, or similarities of pairs with gold scores; see `GridResult`."""

    ids: list[str]
    values: NDArray[np.float64]
    gold: NDArray[np.float64] | None


ITEM_COLUMNS = [*PLACE, "metric", *Items._fields]


def axis_labels(axes: Mapping[Any, Any], also: Container[str] = ()) -> list[str]:
    """Describe the axes that do not have their default value, and those that must be named in any case."""
    words = {**axes, "documents": f"documents at {axes['documents']}".replace("at same", "at the same")}
    return [words[axis] for axis, plain in AXES.items() if axes[axis] != plain or axis in also]


FILE = TableFile(
    "GridResult", {**_KINDS, "is_main": bool, **dict.fromkeys(AXES, str)}, {"ids": str, "values": float, "gold": float}
)


def with_items(frame: pd.DataFrame, items: pd.DataFrame) -> pd.DataFrame:
    """Join both tables: items go into the rows of their scores."""
    return frame.merge(items, on=[*PLACE, "metric"], how="left")


def to_rows(frame: pd.DataFrame, items: pd.DataFrame) -> pd.DataFrame:
    """Join both tables as a file holds them: only a main score has ids, which those of the other metrics repeat."""
    rows = with_items(frame, items)
    # Versions that know no items but those of main scores leave out rows without ids.
    return rows.assign(ids=rows["ids"].where(rows["is_main"], None))


def of_rows(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split what `to_rows` joined."""
    items = rows[rows["values"].notna()][[*ITEM_COLUMNS, "is_main"]]
    shared = items[items["is_main"]].set_index(PLACE)["ids"]
    ids = [*shared.reindex(pd.MultiIndex.from_frame(items[PLACE]))] if len(items) else []
    items = items[ITEM_COLUMNS].assign(ids=pd.Series(ids, items.index, dtype=object))
    for name in ("values", "gold"):
        arrays = [None if values is None else np.asarray(values, dtype=float) for values in items[name]]
        items[name] = pd.Series(arrays, items.index, dtype=object)
    return rows[[*COLUMNS, *AXES]], items


def checked(frame: pd.DataFrame, items: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Check both tables and return copies with all columns, in order."""
    if not set(COLUMNS) <= set(frame.columns) <= {*COLUMNS, *AXES}:
        raise UsageError(f"A GridResult has the columns {COLUMNS}, got {list(frame.columns)}.")
    if frame.empty:
        raise UsageError("A GridResult needs at least one score, got none.")
    if missing := set(ITEM_COLUMNS) - {*AXES, "metric"} - set(items.columns):
        raise UsageError(f"The items of a GridResult have the columns {ITEM_COLUMNS}; {sorted(missing)} are missing.")
    frame, items = (table.assign(**{axis: AXES[axis] for axis in AXES.keys() - {*table}}) for table in (frame, items))
    frame = frame[[*COLUMNS, *AXES]].reset_index(drop=True)
    if twice := repeated(frame):
        raise UsageError(f"Each score may appear only once, but {twice} is repeated.")
    main = frame[frame["is_main"]]
    if "metric" not in items:
        items = items.merge(main[[*PLACE, "metric"]], on=PLACE, how="left")
    items = items[ITEM_COLUMNS].reset_index(drop=True)
    _check_ids(frame[~frame["is_main"]], main, items)
    return frame, items


def _check_ids(others: pd.DataFrame, main: pd.DataFrame, items: pd.DataFrame) -> None:
    """Refuse items of other metrics that are not those of the main score in the same order: a file holds ids once."""
    names = [*PLACE, "metric"]
    of_score = dict(zip(_rows(items[names]), items["ids"], strict=True))
    of_main = {score[:-1]: of_score.get(score) for score in _rows(main[names])}
    for score in filter(of_score.__contains__, _rows(others[names])):
        ids, wanted = of_score[score], of_main.get(score[:-1])
        if ids is not wanted and ids != wanted:
            row = dict(zip(names, score, strict=True))
            raise UsageError(f"{_where(row)}: the items of {row['metric']} must have the ids of the main score, in order.")


def _rows(table: pd.DataFrame) -> Iterable[tuple[Any, ...]]:
    return table.itertuples(index=False, name=None)


def repeated(frame: pd.DataFrame) -> str:
    """Describe the first repeated score; empty if there is none."""
    return next(map(_where, frame[frame.duplicated([*PLACE, "metric"])].head(1).to_dict("records")), "")


def _where(row: Mapping[Any, Any]) -> str:
    """Describe the place of a row."""
    size = Size(int(row["num_layers"]), int(row["dim"]))
    return " ".join([f"{row['task']} ({row['split']}, {row['subset']}) at {size}", *axis_labels(row)])


def narrowed(frame: pd.DataFrame, column: str, values: Any) -> pd.DataFrame:
    """Select the rows with one or several values in a column; None selects all rows."""
    if values is None:
        return frame
    wanted = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
    if unknown := [value for value in wanted if value not in set(frame[column])]:
        available = ", ".join(map(str, frame[column].unique()))
        raise UsageError(f"There is no {column} {unknown[0]!r} in this grid, only {available}.")
    return frame[frame[column].isin(wanted)]


PER_DOCUMENT = "milliseconds_per_document"


def checked_latency(times: pd.DataFrame, depths: Iterable[int]) -> pd.DataFrame:
    """Check a table of times and return a sorted copy."""
    if not isinstance(times, pd.DataFrame):
        raise UsageTypeError(f"times must be a table such as benchmark_latency(model) returns, got {type(times).__name__}.")
    if missing := {"num_layers", "milliseconds_per_text"} - set(times.columns):
        raise UsageError(
            f"times must have the columns of benchmark_latency(model); {', '.join(sorted(missing))} is missing, "
            f"got {list(times.columns)}."
        )
    known = times["num_layers"].tolist()
    if len(set(known)) < len(known):
        raise UsageError(f"times has a depth more than once: num_layers is {known}.")
    if untimed := sorted({int(depth) for depth in depths} - set(known)):
        raise UsageError(
            f"times has no row for num_layers {', '.join(map(str, untimed))}, which the grid has, only for "
            f"{', '.join(map(str, known))}. Time all depths: benchmark_latency(model)."
        )
    milliseconds = times["milliseconds_per_text"].to_numpy(dtype=float)
    if not (np.isfinite(milliseconds) & (milliseconds > 0)).all():
        raise UsageError(f"milliseconds_per_text must be above 0, got {milliseconds.tolist()}.")
    return times.sort_values("num_layers", ignore_index=True)
