"""Pairs of a query and a document, which a reranker reads: a list of pairs, or a table with two columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from st_matryoshka2d.aligning.sample import Part
from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.texts import checked_text, rows_of

_NEEDED = "a list of pairs (query, document), or a table with these two columns"


class Pairs(Part):
    """Pairs with one prompt, read row by row."""

    def __init__(self, pairs: Any, prompt: str | None) -> None:
        super().__init__(_rows(pairs), prompt, "pairs")

    def different(self, seen: set[int]) -> Iterator[tuple[int, tuple[str, str]]]:
        """Yield pairs that were not seen, with their rows, but none with an empty text."""
        for place, row in enumerate(self._rows):
            if isinstance(row, str) or not hasattr(row, "__len__") or len(row) != 2:
                raise UsageTypeError(f"pairs[{place}] is {row!r}, but a reranker reads {_NEEDED}.")
            if self.left_out.lacks(*row):
                continue
            query, document = (checked_text(text, f"pairs[{place}]") for text in row)
            if (mark := hash((query, document))) not in seen:
                seen.add(mark)
                yield place, (query, document)


def _rows(pairs: Any) -> Iterator[Any]:
    """Read a list of pairs, or the two columns of a table."""
    names = list(pairs) if isinstance(pairs, Mapping) else getattr(pairs, "column_names", getattr(pairs, "columns", None))
    if names is None:
        return rows_of(pairs, "pairs")
    if len(names) != 2:
        raise UsageError(f"pairs is a table with the columns {list(names)}, but a reranker reads {_NEEDED}.")
    return zip(*(rows_of(pairs[name], f"pairs[{name!r}]") for name in names), strict=True)
