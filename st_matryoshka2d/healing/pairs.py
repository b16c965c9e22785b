"""Pairs of a query and a document as what a fit reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from st_matryoshka2d.aligning.sample import Part
from st_matryoshka2d.pairs import checked_pair, pair_rows


class Pairs(Part):
    """Pairs with one prompt, read row by row."""

    def __init__(self, pairs: Any, prompt: str | None) -> None:
        super().__init__((), prompt, "pairs")
        self._rows = pair_rows(pairs)

    def different(self, seen: set[int]) -> Iterator[tuple[int, tuple[str, str]]]:
        """Yield pairs that were not seen, with their rows, but none with an empty text."""
        for place, row in enumerate(self._rows):
            if self.left_out.lacks(*row):
                continue
            pair = checked_pair(row, place)
            if (mark := hash(pair)) not in seen:
                seen.add(mark)
                yield place, pair
