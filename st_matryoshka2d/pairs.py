"""Read pairs of a query and a document, which a reranker reads: a list of pairs, or a table with two columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.texts import checked_text, rows_of

_NEEDED = "a list of pairs (query, document), or a table with these two columns"


def pair_rows(pairs: Any) -> Iterator[tuple[Any, Any]]:
    """Read pairs row by row; refuse rows that are none."""
    names = list(pairs) if isinstance(pairs, Mapping) else getattr(pairs, "column_names", getattr(pairs, "columns", None))
    if names is not None and len(names) != 2:
        raise UsageError(f"pairs is a table with the columns {list(names)}, but a reranker reads {_NEEDED}.")
    rows = rows_of(pairs, "pairs") if names is None else zip(*(rows_of(pairs[name], "pairs") for name in names), strict=True)
    for place, row in enumerate(rows):
        if isinstance(row, str | Mapping) or not hasattr(row, "__len__") or len(row) != 2:
            told = textwrap.shorten(repr(row), 80, placeholder=" ...")
            raise UsageTypeError(f"pairs[{place}] is {told}, but a reranker reads {_NEEDED}.")
        yield row[0], row[1]


def checked_pair(row: tuple[Any, Any], place: int) -> tuple[str, str]:
    """Refuse a pair with anything but two texts."""
    query, document = (checked_text(text, f"pairs[{place}]") for text in row)
    return query, document
