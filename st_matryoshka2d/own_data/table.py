"""Read users' tables as pandas frames, and refuse a column or a cell that is not as expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.texts import ROWS, LeftOut, check_text

Table: TypeAlias = Dataset | pd.DataFrame | Mapping[str, Sequence[Any]]


def columns_of(table: object, what: str) -> list[Any]:
    """Return the names of a table's columns, or the keys of a dict; refuse anything else."""
    if isinstance(table, DatasetDict) or not isinstance(table, (Dataset, pd.DataFrame, Mapping)):
        raise UsageTypeError(
            f"{what} must be a datasets.Dataset, a pandas.DataFrame or a dict, got {type(table).__name__}. "
            "pandas reads files and lists of rows; of a DatasetDict, pass one split."
        )
    return table.column_names if isinstance(table, Dataset) else list(table)


def frames(table: Table, what: str, columns: Sequence[str], hint: str = "Rename one.") -> Iterator[pd.DataFrame]:
    """Yield columns of a table as Python objects, with a frame's own index or counted from 0; a `Dataset` in batches."""
    there = columns_of(table, what)
    if missing := [column for column in columns if column not in there]:
        listed = ", ".join(map(repr, there)) or "none"
        raise UsageError(f"{what} has no column {missing[0]!r}; its columns: {listed}. {hint}")
    if len(set(columns)) < len(columns):
        raise UsageError(f"{what}: the columns must differ, got {', '.join(columns)}.")
    batches: Any = [table]
    if isinstance(table, Dataset):
        batches = table.select_columns(list(columns)).with_format(None).iter(1000)
    count = 0
    for batch in batches:
        frame = pd.DataFrame({column: _as_python(batch[column]) for column in columns}, dtype=object)
        rows = pd.RangeIndex(count, count := count + len(frame))
        frame.index = (table.index.to_flat_index() if isinstance(table, pd.DataFrame) else rows).rename("row")
        yield frame
    if not count:
        raise UsageError(f"{what} is empty; it needs at least one row.")


def _as_python(column: Any) -> Any:
    """Convert a column of NumPy, pandas or pyarrow, whose cells have types of their own."""
    convert = getattr(column, "tolist", getattr(column, "to_pylist", None))
    return convert() if convert else column


def filled_rows(table: Table, what: str, numbers: str = "", **columns: str) -> pd.DataFrame:
    """Read the rows without an empty cell; in the column `numbers`, words for none are empty."""
    hint = f"Choose others with {', '.join(f'{keyword}=' for keyword in columns)}."
    frame = pd.concat(frames(table, what, list(columns.values()), hint))
    if numbers:
        words = frame[numbers].astype(str).str.strip().str.lower()
        frame.loc[words.isin(["na", "n/a", "nan", "none", "null", "<na>"]), numbers] = ""
    left_out = LeftOut(what, ROWS)
    full = [not left_out.lacks(*cells) for cells in frame.itertuples(index=False)]
    left_out.tell(list(frame.index) if isinstance(table, pd.DataFrame) else None)
    if not any(full):
        raise UsageError(f"{what} has no row with all cells; it needs at least one.")
    return frame[full]


def as_numbers(cells: pd.Series[Any], what: str) -> pd.Series[float]:
    """Convert cells, such as texts and decimals, to finite numbers."""
    converted = pd.to_numeric(cells, errors="coerce").astype(float)
    check_cells(np.isfinite(converted), cells, what, "a finite number, with a decimal point")
    return converted


def as_names(cells: pd.Series[Any], what: str) -> pd.Series[str]:
    """Convert integers and strings, of ids and labels, to strings."""
    check_cells([isinstance(cell, (str, Integral)) for cell in cells], cells, what, "a string or an integer")
    names = pd.Series(list(map(str, cells)), cells.index, dtype=object, name=cells.name)
    return check_texts(names, what)


def check_texts(cells: pd.Series[Any], what: str, blank: bool = False) -> pd.Series[str]:
    """Refuse cells that are no texts, or blank ones."""
    right = [isinstance(cell, str) and (blank or bool(cell.strip())) for cell in cells]
    check_cells(right, cells, what, "a text, or ''" if blank else "a non-empty text")
    for row, cell in cells.items():
        check_text(cell, f"{what}, {cells.index.name} {row!r}, {cells.name}")
    return cells


def check_cells(right: Any, cells: pd.Series[Any], what: str, expected: str) -> None:
    """Refuse cells that are not right: the error has the first, and where the next ones are."""
    wrong = cells[~np.asarray(right, dtype=bool)]
    if len(wrong):
        row, *others = wrong.index[:4]
        likewise = f" Likewise {', '.join(map(repr, others))}." if others else ""
        raise UsageError(
            f"{what}, {cells.index.name} {row!r}, {cells.name}: expected {expected}, got {wrong.iloc[0]!r:.60}.{likewise} "
            "Correct or fill in such cells, or drop their rows."
        )
