"""Read files of texts: one text a line, columns of a table, or one text a file of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.tables import naming_a_broken_file, read_table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TEXT_FILES = (".csv", ".jsonl", ".parquet", ".txt")
TEXT_FOLDER = ".txt files with a text each"

_HINT = "Name the column of texts with --columns, which may be repeated."
_COLUMNS = "A column of texts; may be repeated. A .txt file has one text per line, and in a folder one text per file."

Columns = Annotated[list[str] | None, typer.Option(help=_COLUMNS, show_default="text")]


def read_texts(path: Path, texts: Sequence[str], others: Sequence[str], hint: str) -> pd.DataFrame:
    """Read a table whose text columns keep "NA" and "42" as texts; an empty cell of the others is NaN."""
    kept = {"keep_default_na": False, "na_values": dict.fromkeys(others, "")}
    table = read_table(path, dtype=dict.fromkeys(texts, str), **kept)
    _require(path, table.columns, [*texts, *others], hint)
    return table


def _require(path: Path, found: Iterable[str], wanted: Sequence[str], hint: str) -> None:
    if missing := [column for column in wanted if column not in found]:
        raise ValueError(
            f"{path} has no column {' and no '.join(map(repr, missing))}; it has {', '.join(map(repr, found))}. {hint}"
        )


def texts_option(what: str) -> Any:
    """Option for a file of texts."""
    return options.file_option("--texts", what, TEXT_FILES, TEXT_FOLDER, exists=True)


def drawn_texts(path: Path, columns: list[str] | None, most: int, *, different: bool = False) -> list[str]:
    """Read the texts in a file in order, column after column, without empty ones; a reproducible sample if too many."""
    import pandas as pd

    from st_matryoshka2d.encoding.left_out import LeftOut

    if path.is_dir() or path.suffix.lower() == ".txt":
        if columns:
            raise typer.BadParameter("--columns needs a .csv, .jsonl or .parquet file; a .txt file has one text per line.")
        cells = {str(path): list(_files(path).values()) if path.is_dir() else _lines(path)}
    else:
        names = columns or ["text"]
        table = read_texts(path, names, [], _HINT)
        cells = {f"{path}, column {name!r}": list(table[name]) for name in names}
    filled: list[str] = []
    for what, column in cells.items():
        left_out = LeftOut(what)
        filled += _texts_of(list(left_out.filled(column)), what)
        left_out.tell(stacklevel=2)
    texts = pd.Series(_some(filled, path), dtype=object)
    if different:
        texts = texts.drop_duplicates()
    return list(texts.sample(most, random_state=0) if len(texts) > most else texts)


def text_rows(path: Path, column: str) -> pa.Table:
    """Read a file of texts with all of its columns as they are, without the rows whose text is empty."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from st_matryoshka2d.encoding.left_out import LeftOut

    match "folder" if path.is_dir() else path.suffix.lower():
        case "folder":
            files = _files(path)
            table = pa.table({"file": list(files), column: list(files.values())})
        case ".txt":
            table = pa.table({column: _lines(path)})
        case ".parquet":
            with naming_a_broken_file(path):
                table = pq.read_table(path)
        case _:  # a number in a CSV file stays as it is written there
            table = pa.Table.from_pandas(read_table(path, dtype=str, keep_default_na=False), preserve_index=False)
    _require(path, table.column_names, [column], "Name the column of texts with --column.")
    left_out = LeftOut(f"{path}, column {column!r}")
    table = table.filter([not left_out.lacks(cell) for cell in table[column].to_pylist()])
    left_out.tell(stacklevel=2)
    _some(_texts_of(table[column].to_pylist(), left_out.what), path)
    return table


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _files(folder: Path) -> dict[str, str]:
    """Read the texts of a folder by the names of their files, in the order of these."""
    return {file.name: _text(file) for file in sorted(folder.glob("*.txt"))}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error}") from error


def _some(texts: list[str], path: Path) -> list[str]:
    if not texts:
        raise ValueError(f"{path} has no text, or only empty ones; at least one is needed.")
    return texts


def _texts_of(column: list[Any], what: str) -> list[str]:
    """Refuse a column with values other than texts, as a Parquet file may have."""
    if others := [value for value in column if not isinstance(value, str)]:
        raise ValueError(
            f"{what}: expected texts, but {len(others):,} of its values are not texts, "
            f"such as {others[0]!r} ({type(others[0]).__name__}). {_HINT}"
        )
    return column
