"""Read and check users' tables, row by row, without loading them whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from datasets import Dataset, DatasetDict, IterableDataset

from st_matryoshka2d.encoding.texts import check_text, is_missing
from st_matryoshka2d.errors import UsageError, UsageTypeError

_LONGEST = 60  # characters of a cell in an error

# Words for "no number" that readers of CSV files know.
_NO_NUMBER = {"", "na", "n/a", "nan", "none", "null"}

Table: TypeAlias = Dataset | pd.DataFrame | Mapping[str, Sequence[Any]]

_BATCH = 1000  # rows of a `Dataset` in memory at a time


def check_kind(given: object, what: str) -> None:
    """Refuse anything but a table."""
    if isinstance(given, DatasetDict):
        raise UsageTypeError(f"{what} is a DatasetDict; pass one of its splits ({', '.join(given)}).")
    if isinstance(given, (str, Path)):
        raise UsageTypeError(f"{what} is {given!r}; read the file first, for example with pandas.read_csv.")
    if isinstance(given, IterableDataset):
        raise UsageTypeError(f"{what} is an IterableDataset, which can be read only once; load it without streaming=True.")
    if not isinstance(given, (Dataset, pd.DataFrame, Mapping)):
        raise UsageTypeError(
            f"{what} must be a datasets.Dataset, a pandas.DataFrame or a dict, got {type(given).__name__}. "
            "pandas.DataFrame(rows) makes a table from a list of rows."
        )


def check_columns(table: Table, what: str, columns: Mapping[str, str], needed: str = "") -> None:
    """Refuse a table that is empty or ragged, or lacks columns; `needed` lists them if their names are fixed."""
    check_kind(table, what)
    there = ", ".join(map(repr, column_names(table))) or "none"
    missing = {keyword: column for keyword, column in columns.items() if column not in column_names(table)}
    if missing and needed:
        lacking = ", ".join(missing.values())
        raise UsageError(f"{what} needs the columns {needed}, and lacks {lacking}: it has {there}. Rename its columns.")
    for keyword, column in missing.items():
        raise UsageError(f"{what} has no column {column!r}. Its columns: {there}. Choose one with {keyword}='...'.")
    if len(set(columns.values())) < len(columns):
        named = ", ".join(f"{keyword}={column!r}" for keyword, column in columns.items())
        raise UsageError(f"These must be different columns: {named}.")
    lengths = {}
    for column in columns.values():
        values = table if isinstance(table, (Dataset, pd.DataFrame)) else table[column]
        if isinstance(values, (str, Mapping)) or not hasattr(values, "__len__"):
            raise UsageTypeError(f"Column {column!r} of {what} must be a list, got {type(values).__name__}.")
        lengths[column] = len(values)
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{column}: {length}" for column, length in lengths.items())
        raise UsageError(f"All columns of {what} must have the same length; their lengths are {counts}.")
    if not any(lengths.values()):
        raise UsageError(f"{what} is empty; it needs at least one row.")


def column_names(table: Table) -> list[str]:
    """Return the names of a table's columns."""
    return list(table.column_names if isinstance(table, Dataset) else table)


def rows(table: Table, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Iterate over the rows of some columns, as Python types."""
    batches = table.select_columns(list(columns)).with_format(None).iter(_BATCH) if isinstance(table, Dataset) else [table]
    for batch in batches:
        cells = (batch[column] for column in columns)
        yield from zip(*map(_as_python, cells), strict=True)


def _as_python(column: Any) -> Any:
    """Convert a column of NumPy, pandas or pyarrow, whose cells have types of their own, to a list."""
    convert = getattr(column, "tolist", getattr(column, "to_pylist", None))
    return convert() if convert else column


def text(
    value: Any, where: str, expected: str = "expected a non-empty text, got", hint: str = " Fill it in or drop the row."
) -> str:
    """Check a text that must not be blank."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {expected} {value!r}.{hint}")
    check_text(value, where)
    return value


def score_of(value: Any) -> Any:
    """Read a score that is a text, as in a table where "NA" and empty cells are texts; what is no number stays as it is."""
    if not isinstance(value, str):
        return "" if is_missing(value) else value
    if value.strip().lower() in _NO_NUMBER:
        return ""
    try:
        return float(value)
    except ValueError:
        return value


def number(value: Any, where: str) -> float:
    """Check a finite number."""
    found = float_of(value)
    if not math.isfinite(found):
        raise UsageError(f"{where}: expected a finite number, got {shortened(value)}. Fix it or drop the row.")
    return found


def float_of(value: Any) -> float:
    """Convert a number, such as a decimal of a database; NaN for anything else, and for what no float can hold."""
    if isinstance(value, bool) or not isinstance(value, (Real, Decimal)):
        return math.nan
    try:
        return float(value)
    except (OverflowError, ValueError):  # 10**400, and decimals that are a signaling NaN
        return math.nan


def shortened(value: Any) -> str:
    """Format a cell for a message."""
    shown = repr(value)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


def first_of(names: Sequence[object], limit: int = 3) -> str:
    """Format the first few names for a message."""
    return ", ".join(map(repr, names[:limit])) + (", ..." if len(names) > limit else "")
