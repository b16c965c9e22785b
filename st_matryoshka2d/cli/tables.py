"""Read the user's files, by pandas: tables, and texts of a table, of lines or of a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from st_matryoshka2d.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

TABLES = ".csv, .tsv, .jsonl or .parquet"
TEXTS = f"{TABLES}; .txt with a text a line; or a folder of .txt with a text each"


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
    """Read a table with columns of texts and perhaps one of numbers, named by options."""
    import pandas as pd

    table = read_table(path)
    options = dict.fromkeys(texts, "--text-column") | ({number: "--value-column"} if number else {})
    for column, option in options.items():
        if column not in table:
            there = ", ".join(map(repr, table))
            raise UsageError(f"{path} has no column {column!r}; it has {there}. Name it: {option}.")
    for column in texts:
        for cell in table[column]:
            if not isinstance(cell, str) and not pd.isna(cell):
                raise UsageError(
                    f"{path}, column {column!r} has {cell!r}, which is no text. "
                    "Name a column of texts: --text-column."
                )
    if number:
        try:
            table[number] = pd.to_numeric(table[number])
        except ValueError as error:
            raise UsageError(f"{path}, column {number!r}: {error}. Expected numbers.") from error
    return table


def read_texts(path: Path, columns: Sequence[str] | None) -> list[str]:
    """Read texts in order, column after column; the library leaves empty ones out."""
    try:
        if path.is_dir():
            return [file.read_text(encoding="utf-8") for file in sorted(path.glob("*.txt"))]
        if path.suffix.lower() == ".txt":
            return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not in UTF-8: {error}") from error
    names = columns or ["text"]
    table = read_columns(path, names)
    return [text for name in names for text in table[name]]
