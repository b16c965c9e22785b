"""Read the user's files, by pandas: tables, and texts of a table, of lines or of a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from st_matryoshka2d.cli.options import TABLES
from st_matryoshka2d.errors import DataWarning, UsageError, warn

if TYPE_CHECKING:
    import pandas as pd


def read_table(path: Path) -> pd.DataFrame:
    """Read a table; in CSV all cells are texts, so that "NA" and "007" stay as they are."""
    import pandas as pd

    try:
        match path.suffix.lower():
            case ".csv":
                return pd.read_csv(path, dtype=str, keep_default_na=False)
            case ".tsv":
                return pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
            case ".jsonl":  # pandas would read texts as numbers and dates
                lines = path.read_text(encoding="utf-8").split("\n")
                return pd.DataFrame([json.loads(line) for line in lines if line.strip()])
            case ".parquet":
                return pd.read_parquet(path)
    except ValueError as error:  # as are those of pandas, pyarrow, json and of an encoding
        raise UsageError(f"{path} cannot be read: {error}") from error
    raise UsageError(f"{path} is not a table: the name must end in {TABLES}.")


def read_columns(path: Path, texts: Sequence[str], number: str | None = None) -> pd.DataFrame:
    """Read a table with columns of texts and perhaps one of numbers, which options have named."""
    table = read_table(path)
    for column in texts:
        _require(path, table, column, " Name it with --text-column.")
        if others := [cell for cell in table[column].dropna() if not isinstance(cell, str)]:
            wrong = f"{path}, column {column!r} has {others[0]!r}, which is no text."
            raise UsageError(f"{wrong} Name a column of texts with --text-column.")
    if number:
        _require(path, table, number, " Name it with --value-column.")
        to_numbers(path, table, number)
    return table


def to_numbers(path: Path, table: pd.DataFrame, column: str) -> None:
    """Convert a column of a table to numbers, in place."""
    import pandas as pd

    _require(path, table, column)
    try:
        table[column] = pd.to_numeric(table[column])
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}, column {column!r} must have numbers: {error}.") from error


def _require(path: Path, table: pd.DataFrame, column: str, remedy: str = "") -> None:
    if column not in table:
        there = ", ".join(map(repr, table))
        raise UsageError(f"{path} has no column {column!r}; it has {there}.{remedy}")


def _files_in(folder: Path) -> list[str]:
    """Read the texts of a folder; name those that are left out."""
    texts = {file.name: file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.txt"))}
    if empty := [name for name, text in texts.items() if not text.strip()]:
        more = f" and {len(empty) - 5:,} more" if len(empty) > 5 else ""
        warn(f"{folder}: empty files are left out: {', '.join(empty[:5])}{more}.", DataWarning)
    return [text for text in texts.values() if text.strip()]


def read_texts(path: Path, columns: Sequence[str] | None) -> list[str]:
    """Read texts in order, column after column; the library leaves empty ones out."""
    try:
        if path.is_dir():
            return _files_in(path)
        if path.suffix.lower() == ".txt":
            return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not in UTF-8: {error}") from error
    names = columns or ["text"]
    table = read_columns(path, names)
    return [text for name in names for text in table[name]]
