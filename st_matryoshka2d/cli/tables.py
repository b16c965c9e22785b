"""Read the user's files, by pandas: tables, and texts of a table, of lines or of a folder."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_matryoshka2d._hosts.mteb_texts import document_texts
from st_matryoshka2d.cli.options import TABLES
from st_matryoshka2d.errors import DataWarning, UsageError, warn

if TYPE_CHECKING:
    import pandas as pd

_NAMED = 5  # rows that a warning names


def read_table(path: Path) -> pd.DataFrame:
    """Read a table; its index counts the rows as the program shows them that wrote the file."""
    import pandas as pd

    try:
        match path.suffix.lower():
            case ".csv":
                table = _separated(_decoded(path), ",;\t")
            case ".tsv":
                table = _separated(_decoded(path), "\t")
            case ".jsonl":  # pandas would read texts as numbers and dates
                lines = enumerate(_decoded(path).split("\n"), start=1)
                rows = {number: json.loads(line) for number, line in lines if line.strip()}
                table = pd.DataFrame([*rows.values()], index=[*rows])
            case ".parquet":
                table = pd.read_parquet(path)
                table.index = pd.RangeIndex(1, len(table) + 1)
            case _:
                raise UsageError(f"it is not a table, whose name ends in {TABLES}. A spreadsheet saves CSV in UTF-8.")
    except ValueError as error:  # as are those of pandas, pyarrow and json
        raise UsageError(f"{path} cannot be read: {error}") from error
    return table


def _decoded(path: Path) -> str:
    """Read a file of text in UTF-8, or in what spreadsheets write."""
    content = path.read_bytes()
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        try:
            text = content.decode("cp1252")
        except UnicodeDecodeError:
            raise UsageError(f"{path} is not in UTF-8: {error}. Save it in UTF-8.") from error
    warn(f"{path} is not in UTF-8, and is read as Windows-1252. If letters are wrong, save it in UTF-8.", DataWarning)
    return text


def _separated(text: str, separators: str) -> pd.DataFrame:
    """Read CSV, all cells as texts, so that "NA" and "007" stay as they are; the header is row 1, and blank rows count."""
    import pandas as pd

    try:
        separator = csv.Sniffer().sniff(text.partition("\n")[0].rstrip(), separators).delimiter
    except csv.Error:  # one column
        separator = separators[0]
    table = pd.read_csv(StringIO(text), sep=separator, dtype=str, keep_default_na=False, skip_blank_lines=False).fillna("")
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes the first cells for names of rows
        raise UsageError(f"rows have more cells than the header. Put cells that have {separator!r} in them in quotes.")
    table.index = pd.RangeIndex(2, len(table) + 2)
    filled: pd.DataFrame = table[table.apply(lambda column: column.str.strip() != "").any(axis=1)]
    return filled


def read_columns(path: Path, texts: Sequence[str], option: str, number: str | None = None) -> pd.DataFrame:
    """Read a table with columns of texts, which an option has named, and perhaps one of numbers."""
    table = read_table(path)
    for column, named_by in [*((column, option) for column in texts), *([(number, "--value-column")] if number else [])]:
        if column not in table:
            there = ", ".join(map(repr, table))
            raise UsageError(f"{path} has no column {column!r}; it has {there}. Name it with {named_by}.")
    for column in texts:
        if others := [cell for cell in table[column].dropna() if not isinstance(cell, str)]:
            wrong = f"{path}, column {column!r} has {others[0]!r}, which is no text."
            raise UsageError(f"{wrong} Name a column of texts with {option}.")
    return table


def read_texts(
    path: Path, columns: Sequence[str] | None = None, option: str = "--text-column", *, keep_empty: bool = False
) -> list[str]:
    """Read texts: of a folder, of lines, or of a table, column after column; where there is none, nothing or ''."""
    texts: list[tuple[Any, str]]  # and the row or file of each
    if path.is_dir():
        texts = [(file.name, _decoded(file)) for file in sorted(path.glob("*.txt"))]
    elif path.suffix.lower() == ".txt":
        texts = [*enumerate(_decoded(path).splitlines(), start=1)]
    else:
        chosen = columns or ["text"]
        names = [name for name in chosen if name != "title" or "text" not in chosen]  # which it stands before
        table = read_columns(path, names, option)
        table = table.astype(object).where(table.notna(), "")
        texts = [row for name in names for row in zip(table.index, _of_column(table, name), strict=True)]
    empty = [str(place) for place, text in texts if not text.strip()]
    if empty and not keep_empty:
        named = ", ".join(empty[:_NAMED]) + (", ..." if len(empty) > _NAMED else "")
        kind = "files" if path.is_dir() else "rows"
        warn(f"{path}: {len(empty):,} of {len(texts):,} {kind} have no text and are left out: {named}.", DataWarning)
    return [text for _, text in texts if keep_empty or text.strip()]


def _of_column(table: pd.DataFrame, name: str) -> list[str]:
    """Return the texts of a column; with the column title before the column text, as in a search."""
    title = {"title": [*table["title"]]} if name == "text" and "title" in table else {}
    return document_texts({"text": [*table[name]], **title})
