"""Read and check texts before a model runs. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from st_matryoshka2d.errors import UsageError, UsageTypeError

_NAMED = 5


def rows_of(texts: Any, name: str = "texts") -> Iterator[Any]:
    """Read a list, a column of any library or a generator, row by row; refuse a table, which has several columns."""
    if isinstance(texts, str | bytes):
        raise UsageTypeError(f"{name} must be a list of texts, got one string; wrap it: [text].")
    # Iterating over a table gives the names of its columns, or rows of several cells.
    is_table = isinstance(texts, Mapping) or hasattr(texts, "columns") or hasattr(texts, "column_names")
    is_column = isinstance(texts, Iterable) or hasattr(texts, "to_pylist")
    if is_table or not is_column or getattr(texts, "ndim", 1) != 1:
        raise UsageTypeError(
            f"{name} must be a list or a generator of texts or one column of a table, got a {type(texts).__name__}. "
            "Choose a column of a table like this: table['text']."
        )
    rows = texts if isinstance(texts, Iterable) else texts.to_pylist()  # a series of Daft
    return (row.as_py() if hasattr(row, "as_py") else row for row in rows)  # pyarrow's arrays yield scalars


def strings(texts: Any, column: str = "") -> list[str]:
    """Convert texts, or a column of a table by its name, to a list; refuse rows that are not texts."""
    name, place = (f"Column {column!r}", f"Row {{}} of column {column!r}") if column else ("texts", "texts[{}]")
    rows = list(rows_of(texts, name))
    others = [number for number, row in enumerate(rows) if not isinstance(row, str)]
    named = ", ".join(map(str, others[:_NAMED])) + (", ..." if len(others) > _NAMED else "")
    more = f" In all, {len(others):,} of {len(rows):,} rows are no texts: {named}." if len(others) > 1 else ""
    return [checked_text(row, place.format(number), more) for number, row in enumerate(rows)]


def checked_text(text: object, where: str, more: str = "") -> str:
    """Refuse anything but a text that can be encoded; the error ends in what is known of other rows."""
    if not isinstance(text, str):
        raise UsageTypeError(
            f"{where} is {text!r} ({type(text).__name__}), but every text must be a string. Remove or fill such rows first."
            f"{more}"
        )
    check_text(text, where)
    return text


def check_text(text: object, where: str) -> None:
    """Refuse a text that cannot be encoded in UTF-8, which tokenizers and files need."""
    if isinstance(text, str) and not text.isascii():
        with naming_a_broken_text(where):
            text.encode()


@contextmanager
def naming_a_broken_text(where: str) -> Iterator[None]:
    """Name the text in the error if it cannot be encoded."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{where}: character {error.start} of the text {error.object[:80]!r} is half of a surrogate pair. The text was "
            "read with a wrong encoding or cut within an emoji. Read it again, or replace the character: "
            "text.encode('utf-8', 'replace').decode()."
        ) from error
