"""Read and check texts: a column row by row, which rows are left out, and which the model cannot embed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from st_matryoshka2d.errors import DataWarning, UsageError, UsageTypeError, warn

if TYPE_CHECKING:
    from sentence_transformers.base.model import BaseModel

_NAMED = 5  # rows that a warning names
ROWS = "rows have an empty cell"  # of tables, in such a warning


def rows_of(texts: Any, name: str = "texts") -> Iterator[Any]:
    """Read a list, a column of any library or a generator, row by row; refuse a table."""
    if isinstance(texts, str | bytes):
        raise UsageTypeError(f"{name} must be a list of texts, got one string: pass [text], or the lines of a file.")
    # Iterating over a table gives the names of its columns, or rows of several cells.
    is_table = isinstance(texts, Mapping) or hasattr(texts, "columns") or hasattr(texts, "column_names")
    is_column = isinstance(texts, Iterable) or hasattr(texts, "to_pylist")
    if is_table or not is_column or getattr(texts, "ndim", 1) != 1:
        raise UsageTypeError(
            f"{name} must be a list or a generator of texts or one column of a table, got a "
            f"{type(texts).__name__}. Choose a column of a table like this: table['text']."
        )
    rows = texts if isinstance(texts, Iterable) else texts.to_pylist()  # a series of Daft
    return (row.as_py() if hasattr(row, "as_py") else row for row in rows)  # pyarrow's scalars


def strings(texts: Any, column: str = "") -> list[str]:
    """Convert texts, or a column of a table by its name, to a list; refuse rows that are not texts."""
    name, place = (f"Column {column!r}", f"Row {{}} of column {column!r}") if column else ("texts", "texts[{}]")
    return [checked_text(row, place.format(number)) for number, row in enumerate(rows_of(texts, name))]


def checked_text(text: object, where: str) -> str:
    """Refuse anything but a text that can be encoded."""
    if not isinstance(text, str):
        raise UsageTypeError(
            f"{where} is {text!r} ({type(text).__name__}), but every text must be a string. Remove or fill such rows first."
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
            f"{where}: character {error.start} of the text {error.object[:80]!r} is half of a surrogate pair. "
            "The text was read with a wrong encoding or cut within an emoji. Read it again, or replace the "
            "character: text.encode('utf-8', 'replace').decode()."
        ) from error


def is_missing(cell: object) -> bool:
    """Tell whether a cell has no value: None, NaN or pandas' NA."""
    is_nan = isinstance(cell, float) and math.isnan(cell)
    return cell is None or is_nan or type(cell).__name__ == "NAType"


def is_empty(cell: object) -> bool:
    """Tell whether a cell is missing or a blank text."""
    return is_missing(cell) or (isinstance(cell, str) and not cell.strip())


class LeftOut:
    """Counts the texts that are empty, or the rows of a table that have an empty cell: one warning names the first few."""

    def __init__(self, what: str, lack: str = "are empty") -> None:
        self.what, self.lack = what, lack  # as in "pairs: 3 of 200 rows have an empty cell"
        self.total = 0
        self.rows: list[int] = []

    def lacks(self, *cells: object) -> bool:
        """Count the next row, and tell whether it is left out."""
        is_left_out = any(map(is_empty, cells))
        if is_left_out:
            self.rows.append(self.total)
        self.total += 1
        return is_left_out

    def tell(self, index: Sequence[Any] | None = None) -> None:
        """Warn how many rows were left out, and name the first few, by a table's own index if it has one."""
        if self.rows:
            first = self.rows[:_NAMED]
            named = ", ".join(str(row if index is None else index[row]) for row in first)
            named += (", ..." if len(self.rows) > _NAMED else "") + (" (counted from 0)" if index is None else "")
            warn(f"{self.what}: {len(self.rows):,} of {self.total:,} {self.lack} and are left out: {named}.", DataWarning)


def filled_texts(texts: Any) -> list[str]:
    """Convert texts to a list without the empty ones, and warn of these."""
    left_out = LeftOut("texts")
    filled = strings(text for text in rows_of(texts) if not left_out.lacks(text))
    left_out.tell()
    return filled


def require_finite(embeddings: Any, texts: Sequence[str], where: Sequence[str] = ()) -> None:
    """Refuse embeddings, (texts, dim), that are not all finite; name the first such text, and its place if each has one."""
    broken = ~np.isfinite(np.asarray(embeddings)).all(axis=1)
    if broken.any():
        place = int(broken.argmax())
        named = f"{texts[place][:80]!r}" + (f", {where[place]}," if where else "")
        raise UsageError(
            f"The model's embedding of {named} is not finite. Usually the model runs in float16: load it in float32 or "
            "bfloat16. Otherwise its weights are broken, or this text should be left out."
        )


def chosen_prompt(model: BaseModel, prompt: str | None, prompt_name: str | None) -> str | None:
    """Return what `encode` puts in front of each text with these keywords; refuse a name that the model does not have."""
    if prompt is not None:
        return prompt
    if prompt_name is None:
        return None if model.default_prompt_name is None else model.prompts.get(model.default_prompt_name)
    if prompt_name not in model.prompts:
        raise UsageError(f"The model has no prompt {prompt_name!r}, only {list(model.prompts)}.")
    return model.prompts[prompt_name]
