"""Tables as users have them, read row by row and never as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from datasets import Dataset, DatasetDict, IterableDataset

__all__ = ["Table", "check_columns", "check_kind", "column_names", "rows"]

Table: TypeAlias = Dataset | pd.DataFrame | Mapping[str, Sequence[Any]]

# Rows of a `Dataset` that are in memory at a time.
_BATCH = 1000


def check_kind(given: object, what: str) -> None:
    """Refuse what is no table.

    Args:
        given: What the user passed.
        what: How the argument is called.

    Raises:
        TypeError: Neither a `Dataset`, nor a `DataFrame`, nor a mapping.
    """
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


def check_columns(table: Table, what: str, columns: Mapping[str, str]) -> None:
    """Refuse a table that is empty, ragged or without the columns wanted.

    Args:
        table: Any table.
        what: How the argument is called.
        columns: Keyword of the user's call to the column that it names.

    Raises:
        TypeError: Not a table, or a column of a mapping is not a list.
        ValueError: A column is not there or named twice, columns differ in length, or there is no row.
    """
    check_kind(table, what)
    there = column_names(table)
    for keyword, column in columns.items():
        if column not in there:
            raise ValueError(
                f"{what} has no column {column!r}. Its columns: {', '.join(map(repr, there)) or 'none'}. "
                f"Say which one it is with {keyword}='...'."
            )
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
    """The rows of some columns, as Python's own types.

    A `Dataset` on disk stays there: its rows pass through memory in batches.

    Args:
        table: A table that has been checked.
        columns: Which columns, in the order wanted.

    Example:
        >>> list(rows({"a": [1, 2], "b": ["x", "y"]}, ["b", "a"]))
        [('x', 1), ('y', 2)]
    """
    if isinstance(table, Dataset):
        for batch in table.select_columns(list(columns)).with_format(None).iter(_BATCH):
            yield from zip(*(batch[column] for column in columns), strict=True)
    else:
        yield from zip(*(_values(table[column]) for column in columns), strict=True)


def _length(table: Table, what: str, column: str) -> int:
    if isinstance(table, (Dataset, pd.DataFrame)):
        return len(table)
    values = table[column]
    if isinstance(values, (str, Mapping)) or not hasattr(values, "__len__"):
        raise TypeError(f"Column {column!r} of {what} must be a list, got {type(values).__name__}.")
    return len(values)


def _values(column: Any) -> list[Any]:
    return list(column.tolist() if hasattr(column, "tolist") else column)
