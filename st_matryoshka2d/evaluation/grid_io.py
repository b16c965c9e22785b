"""The tables of a result: which columns a grid has, what is refused, and how a table lies in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from st_matryoshka2d.files import check_is_file, replace_file
from st_matryoshka2d.sizes import Size

_KINDS = {"task": str, "split": str, "subset": str, "num_layers": int, "dim": int, "metric": str, "score": float}
COLUMNS = [*_KINDS, "is_main"]

# More axes, and what a plain grid has there. They are shown only where a grid has something else.
AXES = {"precision": "float32", "truncation": "first", "documents": "same size"}

# What one number of a metric belongs to.
PLACE = ["task", "split", "subset", "num_layers", "dim", *AXES]


class Items(NamedTuple):
    """What a main score is made of: scores of queries, or similarities of pairs with gold scores; see `GridResult`."""

    ids: list[str]
    values: NDArray[np.float64]
    gold: NDArray[np.float64] | None


ITEM_COLUMNS = [*PLACE, *Items._fields]


def told(axes: Mapping[str, str]) -> list[str]:
    """What of these axes does not go without saying, in words."""
    words = {"documents": "documents at {}"}
    return [words.get(axis, "{}").format(axes[axis]) for axis, plain in AXES.items() if axes[axis] != plain]


@dataclass(frozen=True)
class Form:
    """How the table of one kind of result lies in a file, Parquet or JSON, and what else belongs to it."""

    name: str
    columns: Mapping[str, type]
    lists: Mapping[str, type] = field(default_factory=dict)  # columns of lists, with None where a row has none

    def write(self, path: str | os.PathLike[str], frame: pd.DataFrame, about: Mapping[str, Any]) -> None:
        """Save a table; tables and texts in `about` belong to it as a whole."""
        suffix = self._suffix(path)
        told = {name: value.to_dict("list") if isinstance(value, pd.DataFrame) else value for name, value in about.items()}
        lists = {name: [_listed(value) for value in frame[name]] for name in self.lists}
        if suffix == ".parquet":
            table = pa.Table.from_pandas(frame[[*self.columns]], preserve_index=False)
            for name, kind in self.lists.items():
                table = table.append_column(name, pa.array(lists[name], pa.list_(pa.from_numpy_dtype(kind))))
            table = table.replace_schema_metadata({self._kind: json.dumps(told)})
            replace_file(path, lambda part: pq.write_table(table, part, compression="zstd", write_page_checksum=True))
            return
        rows = frame[[*self.columns]].to_dict("records")
        for name, values in lists.items():
            for row, value in zip(rows, values, strict=True):
                row |= {} if value is None else {name: value}
        content = json.dumps({"kind": self._kind, **told, "rows": rows}, ensure_ascii=False)
        replace_file(path, lambda part: part.write_text(content, encoding="utf-8"))

    def read(self, path: str | os.PathLike[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
        """What `write` was given."""
        read = self._read_parquet if self._suffix(path) == ".parquet" else self._read_json
        check_is_file(path)
        frame, told = read(Path(path))
        return frame, {name: pd.DataFrame(value) if isinstance(value, dict) else value for name, value in told.items()}

    @property
    def _kind(self) -> str:
        return f"st_matryoshka2d.{self.name}"

    def _suffix(self, path: str | os.PathLike[str]) -> str:
        suffix = Path(path).suffix.lower()
        if suffix not in (".parquet", ".json"):
            raise ValueError(f"A {self.name} is saved as .parquet or .json, got {os.fspath(path)!r}.")
        return suffix

    def _read_parquet(self, path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
        try:
            # `read_table` would open the path twice, and find another file the second time if it is being replaced.
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                table = file.read()
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # missing, not to be read: the system's own words
                raise
            raise ValueError(f"{path} is not a Parquet file: {error}") from error
        metadata = table.schema.metadata or {}
        if self._kind.encode() not in metadata or not {*self.columns, *self.lists} <= set(table.column_names):
            raise ValueError(f"{path} is a Parquet file, but not one that {self.name}.save wrote.")
        frame = table.select([*self.columns]).to_pandas(ignore_metadata=True)
        lists = {name: pd.Series(table[name].to_pylist(), dtype=object) for name in self.lists}
        return frame.assign(**lists), json.loads(metadata[self._kind.encode()])

    def _read_json(self, path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
            raise ValueError(f"{path} is not a JSON file: {error}") from error
        if not isinstance(content, dict) or content.pop("kind", None) != self._kind:
            raise ValueError(f"{path} is a JSON file, but not one that {self.name}.save wrote.")
        rows = content.pop("rows", None)
        if not isinstance(rows, list) or not all(map(self._is_row, rows)):
            raise ValueError(f"{path} is a JSON file of {self.name}.save, but its rows are not what that writes.")
        frame = pd.DataFrame(
            {name: pd.Series([row[name] for row in rows], dtype=self._dtype(name)) for name in self.columns}
        )
        return frame.assign(
            **{name: pd.Series([row.get(name) for row in rows], dtype=object) for name in self.lists}
        ), content

    def _dtype(self, name: str) -> str | None:
        return "float64" if self.columns[name] is float else None

    def _is_row(self, row: Any) -> bool:
        kinds = {name: int | float if kind is float else kind for name, kind in self.columns.items()}
        return isinstance(row, dict) and all(isinstance(row.get(name), kind) for name, kind in kinds.items())


def _listed(value: Any) -> list[Any] | None:
    return None if value is None or isinstance(value, float) else np.asarray(value).tolist()


_GRID = Form(
    "GridResult", {**_KINDS, "is_main": bool, **dict.fromkeys(AXES, str)}, {"ids": str, "values": float, "gold": float}
)


def write_grid(path: str | os.PathLike[str], frame: pd.DataFrame, items: pd.DataFrame, about: Mapping[str, Any]) -> None:
    """Save a grid; the items lie in the rows of the main scores that are made of them."""
    _GRID.write(path, frame.merge(items.assign(is_main=True), on=[*PLACE, "is_main"], how="left"), about)


def read_grid(path: str | os.PathLike[str]) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """What `write_grid` was given."""
    rows, about = _GRID.read(path)
    items = rows[rows["ids"].notna()][ITEM_COLUMNS].copy()
    for name in ("values", "gold"):
        arrays = [None if values is None else np.asarray(values, dtype=float) for values in items[name]]
        items[name] = pd.Series(arrays, items.index, dtype=object)
    return rows[[*COLUMNS, *AXES]], items, about


def checked(frame: pd.DataFrame, items: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Copies with every column there is, in one order."""
    if not set(COLUMNS) <= set(frame.columns) <= {*COLUMNS, *AXES}:
        raise ValueError(f"A GridResult has the columns {COLUMNS}, got {list(frame.columns)}.")
    if frame.empty:
        raise ValueError("A GridResult needs at least one score, got none.")
    if missing := set(ITEM_COLUMNS) - set(AXES) - set(items.columns):
        raise ValueError(f"The items of a GridResult have the columns {ITEM_COLUMNS}; {sorted(missing)} are missing.")
    frame = frame.assign(**{axis: plain for axis, plain in AXES.items() if axis not in frame})
    items = items.assign(**{axis: plain for axis, plain in AXES.items() if axis not in items})
    frame = frame[[*COLUMNS, *AXES]].reset_index(drop=True)
    if (repeated := frame.duplicated([*PLACE, "metric"])).any():
        row = frame[repeated].iloc[0]
        raise ValueError(f"Each score can be there only once; {row['metric']} of {_place(row)} is repeated.")
    return frame, items[ITEM_COLUMNS].reset_index(drop=True)


def narrowed(frame: pd.DataFrame, column: str, values: Any) -> pd.DataFrame:
    """The rows that have one of some values in a column; None stands for all values."""
    if values is None:
        return frame
    kept = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
    if unknown := [value for value in kept if value not in set(frame[column])]:
        there = ", ".join(map(str, frame[column].unique()))
        raise ValueError(f"There is no {column} {unknown[0]!r} here; there are {there}.")
    return frame[frame[column].isin(kept)]


def joined(tables: Sequence[tuple[pd.DataFrame, pd.DataFrame]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of several grids in one."""
    frame = pd.concat([frame for frame, _ in tables], ignore_index=True)
    if (repeated := frame.duplicated([*PLACE, "metric"])).any():
        raise ValueError(
            f"{_place(frame[repeated].iloc[0])} is in two of these grids. Drop it from one: "
            "`grid.at(tasks=..., num_layers=..., dims=...)` keeps what you name."
        )
    with_items = [items for _, items in tables if not items.empty]
    return frame, pd.concat(with_items, ignore_index=True) if with_items else tables[0][1]


def common_latency(latencies: Sequence[pd.DataFrame | None]) -> pd.DataFrame | None:
    """The one table of times among those of several grids."""
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


def checked_latency(times: pd.DataFrame, depths: Iterable[int]) -> pd.DataFrame:
    """A copy of a table of times, if it has what a grid needs."""
    if not isinstance(times, pd.DataFrame):
        raise TypeError(f"The times are a table as benchmark_latency(model) returns it, got {type(times).__name__}.")
    if missing := {"num_layers", "milliseconds_per_text"} - set(times.columns):
        raise ValueError(
            f"The times lack {', '.join(sorted(missing))}; a table as benchmark_latency(model) returns it is needed, got "
            f"the columns {list(times.columns)}."
        )
    known = times["num_layers"].tolist()
    if len(set(known)) < len(known):
        raise ValueError(f"The times have a depth more than once: num_layers is {known}.")
    if untimed := sorted({int(depth) for depth in depths} - set(known)):
        raise ValueError(
            f"The times lack num_layers {', '.join(map(str, untimed))}, which the grid has; there are "
            f"{', '.join(map(str, known))}. Time all depths: benchmark_latency(model)."
        )
    milliseconds = times["milliseconds_per_text"].to_numpy(dtype=float)
    if not (np.isfinite(milliseconds) & (milliseconds > 0)).all():
        raise ValueError(f"milliseconds_per_text must be above 0, got {milliseconds.tolist()}.")
    return times.sort_values("num_layers", ignore_index=True)
