"""Read users' tables row by row, without loading them whole, and check their cells."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from datasets import Dataset, DatasetDict, IterableDataset

from st_matryoshka2d.texts import check_text

Table: TypeAlias = Dataset | pd.DataFrame | Mapping[str, Sequence[Any]]

_BATCH = 1000  # rows of a `Dataset` in memory at a time


def check_kind(given: object, what: str) -> None:
    """Refuse anything but a table."""
    if isinstance(given, DatasetDict):
        raise TypeError(f"{what} is a DatasetDict; pass one of its splits ({', '.join(given)}).")
    if isinstance(given, (str, Path)):
        raise TypeError(f"{what} is {given!r}; read the file first, for example with pandas.read_csv.")
    if isinstance(given, IterableDataset):
        raise TypeError(f"{what} is an IterableDataset, which can be read only once; load it without streaming=True.")
    if not isinstance(given, (Dataset, pd.DataFrame, Mapping)):
        raise TypeError(
            f"{what} must be a datasets.Dataset, a pandas.DataFrame or a dict, got {type(given).__name__}. "
            "pandas.DataFrame(rows) makes a table from a list of rows."
        )


def check_columns(table: Table, what: str, columns: Mapping[str, str], needed: str = "") -> None:
    """Refuse a table that is empty or ragged, or lacks columns; `needed` lists them if their names are fixed."""
    check_kind(table, what)
    there = ", ".join(map(repr, column_names(table))) or "none"
    missing = {keyword: column for keyword, column in columns.items() if column not in column_names(table)}
    if missing and needed:
        names = " and ".join(missing.values())
        raise ValueError(f"{what} needs the columns {needed}; {names} is not among {there}. Rename the columns.")
    for keyword, column in missing.items():
        raise ValueError(f"{what} has no column {column!r}. Its columns: {there}. Choose one with {keyword}='...'.")
    if len(set(columns.values())) < len(columns):
        named = ", ".join(f"{keyword}={column!r}" for keyword, column in columns.items())
        raise ValueError(f"These must be different columns: {named}.")
    lengths = {column: _length(table, what, column) for column in columns.values()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{column}: {length}" for column, length in lengths.items())
        raise ValueError(f"All columns of {what} must have the same length; their lengths are {counts}.")
    if not any(lengths.values()):
        raise ValueError(f"{what} is empty; it needs at least one row.")


def column_names(table: Table) -> list[str]:
    """Return the names of a table's columns."""
    return list(table.column_names if isinstance(table, Dataset) else table)


def rows(table: Table, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Iterate over the rows of some columns, as Python types."""
    batches = table.select_columns(list(columns)).with_format(None).iter(_BATCH) if isinstance(table, Dataset) else [table]
    for batch in batches:
        cells = (batch[column] for column in columns)
        yield from zip(*(column.tolist() if hasattr(column, "tolist") else column for column in cells), strict=True)


def _length(table: Table, what: str, column: str) -> int:
    if isinstance(table, (Dataset, pd.DataFrame)):
        return len(table)
    values = table[column]
    if isinstance(values, (str, Mapping)) or not hasattr(values, "__len__"):
        raise TypeError(f"Column {column!r} of {what} must be a list, got {type(values).__name__}.")
    return len(values)


def is_missing(value: object) -> bool:
    """Tell whether a cell is empty: None, NaN or pandas' NA."""
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def text(value: Any, where: str) -> str:
    """Check a text that must not be blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: expected a non-empty text, got {value!r}. Fill it in or drop the row.")
    check_text(value, where)
    return value


def number(value: Any, where: str) -> float:
    """Check a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{where}: expected a finite number, got {value!r}. Fix it or drop the row.")
    return float(value)


def identifier(value: Any, where: str) -> str:
    """Check an id and return it as a string; integers are accepted."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: an id must be a non-empty string or an integer, got {value!r}.")
    check_text(value, where)
    return value


def relevance(value: Any, where: str) -> int:
    """Check a relevance: 0, 1, 2, ..."""
    grade = float(value) if isinstance(value, Real) else math.nan
    if not grade.is_integer() or grade < 0:
        raise ValueError(f"{where}: relevance must be a whole number of 0 (not relevant) or more, got {value!r}.")
    return int(grade)


def first_of(names: Sequence[object], limit: int = 3) -> str:
    """Format the first few names for a message."""
    return ", ".join(map(repr, names[:limit])) + (", ..." if len(names) > limit else "")
