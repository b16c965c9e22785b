"""The user's own texts: read a file, draw a sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.tables import read_texts

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Columns", "check_columns", "drawn_texts", "texts_in", "texts_option"]

_HINT = "Say with --columns which of them are texts."

Columns = Annotated[
    list[str] | None,
    typer.Option(help="A column of texts; may be repeated. A .txt has a text in each line.", show_default="text"),
]


def texts_option(what: str) -> Any:
    """The option for a file of texts."""
    return options.file_option("--texts", what, (".csv", ".parquet", ".txt"), exists=True)


def check_columns(texts: Path, columns: list[str] | None) -> None:
    """Refuse column names for a file without columns."""
    if columns and texts.suffix.lower() == ".txt":
        raise typer.BadParameter("--columns needs a .csv or .parquet file; a .txt file has one text per line.")


def texts_in(path: Path, columns: list[str] | None) -> pd.Series[str]:
    """The texts in a file in order, column after column, without empty ones."""
    import pandas as pd

    if path.suffix.lower() == ".txt":
        try:
            texts = pd.Series(path.read_text(encoding="utf-8").splitlines(), dtype=object)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not text in UTF-8: {error}") from error
    else:
        names = columns or ["text"]
        table = read_texts(path, names, [], _HINT)
        texts = pd.concat([_texts_of(table[name].dropna(), path) for name in names], ignore_index=True)
    texts = texts[texts.str.strip() != ""]
    if texts.empty:
        raise ValueError(f"{path} has no text, or only empty ones; at least one is needed.")
    return texts


def drawn_texts(texts: pd.Series[str], most: int) -> list[str]:
    """All texts, or a sample that is the same each time where there are too many."""
    return list(texts.sample(most, random_state=0) if len(texts) > most else texts)


def _texts_of(column: pd.Series[str], path: Path) -> pd.Series[str]:
    """Refuse a column with values other than texts, as a Parquet file may have."""
    if others := [value for value in column if not isinstance(value, str)]:
        raise ValueError(
            f"Column {column.name!r} of {path} must have texts; {len(others):,} of its values are not texts, "
            f"such as {others[0]!r} ({type(others[0]).__name__}). {_HINT}"
        )
    return column.astype(object)
