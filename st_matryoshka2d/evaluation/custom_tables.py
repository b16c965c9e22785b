"""Tables as users have them, read row by row and never as a whole."""

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

_BATCH = 1000  # rows of a `Dataset` that are in memory at a time


def check_kind(given: object, what: str) -> None:
    """Refuse what is no table."""
    if isinstance(given, DatasetDict):
        raise TypeError(f"{what} is a DatasetDict; pass one of its splits ({', '.join(given)}).")
    if isinstance(given, (str, Path)):
        raise TypeError(f"{what} is {given!r}; read the file first, for example with pandas.read_csv.")
    if isinstance(given, IterableDataset):
        raise TypeError(f"{what} is an IterableDataset, whose rows are there once; load it without streaming=True.")
    if not isinstance(given, (Dataset, pd.DataFrame, Mapping)):
        raise TypeError(
            f"{what} must be a datasets.Dataset, a pandas.DataFrame or a dict, got {type(given).__name__}. "
            "pandas.DataFrame(rows) makes a table of a list of rows."
        )


def check_columns(table: Table, what: str, columns: Mapping[str, str], needed: str = "") -> None:
    """Refuse a table that is empty, ragged or without the columns wanted; those that are `needed` have fixed names."""
    check_kind(table, what)
    there = ", ".join(map(repr, column_names(table))) or "none"
    missing = {keyword: column for keyword, column in columns.items() if column not in column_names(table)}
    if missing and needed:
        names = " and ".join(missing.values())
        raise ValueError(f"{what} needs the columns {needed}; {names} is not among {there}. Rename the columns.")
    for keyword, column in missing.items():
        raise ValueError(f"{what} has no column {column!r}. Its columns: {there}. Say which one it is with {keyword}='...'.")
    if len(set(columns.values())) < len(columns):
        named = ", ".join(f"{keyword}={column!r}" for keyword, column in columns.items())
        raise ValueError(f"Each of these needs a column of its own: {named}.")
    lengths = {column: _length(table, what, column) for column in columns.values()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{column}: {length}" for column, length in lengths.items())
        raise ValueError(f"All columns of {what} must be equally long; their lengths are {counts}.")
    if not any(lengths.values()):
        raise ValueError(f"{what} is empty; it needs at least one row.")


def column_names(table: Table) -> list[str]:
    """The columns of a table, in its order."""
    return list(table.column_names if isinstance(table, Dataset) else table)


def rows(table: Table, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of some columns, as Python's own types."""
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
    """Whether a cell is empty: None, NaN or pandas' NA."""
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def text(value: Any, where: str) -> str:
    """A text that says something."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: expected a text that is not empty, got {value!r}. Fill it in or drop the row.")
    check_text(value, where)
    return value


def number(value: Any, where: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{where}: expected a finite number, got {value!r}. Mend it or drop the row.")
    return float(value)


def identifier(value: Any, where: str) -> str:
    """An id: a text, or an integer, which becomes a text."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: an id is a text that is not empty or an integer, got {value!r}.")
    check_text(value, where)
    return value


def relevance(value: Any, where: str) -> int:
    """How relevant a document is: 0, 1, 2, ..."""
    grade = float(value) if isinstance(value, Real) else math.nan
    if not grade.is_integer() or grade < 0:
        raise ValueError(f"{where}: relevance is a whole number, 0 (not relevant) or more, got {value!r}.")
    return int(grade)


def first_of(names: Sequence[object], limit: int = 3) -> str:
    """The first few names, for a message."""
    return ", ".join(map(repr, names[:limit])) + (", ..." if len(names) > limit else "")
