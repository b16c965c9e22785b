"""Pairs of a query and a document as what a fit reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from st_matryoshka2d.aligning.sample import Part, Text
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.pairs import checked_pair, pair_rows

_HELD = 10  # a pair of so many is left out
_LEAST = 3  # pairs, below which a correlation says nothing


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


def without_queries(sample: Sequence[Text]) -> tuple[Sequence[Text], Sequence[Text]]:
    """Part pairs in random order by query: a query that the fit has read would tell too much about its other pairs."""
    by_query: dict[str, list[Text]] = {}
    for pair in sample:
        by_query.setdefault(pair.text[0], []).append(pair)
    held: list[Text] = []
    while by_query and len(held) < max(_LEAST, len(sample) // _HELD):
        held += by_query.pop(next(iter(by_query)))
    seen = [pair for pair in sample if pair.text[0] in by_query]
    if len(seen) < _LEAST:
        queries = len({pair.text[0] for pair in sample})
        raise UsageError(
            f"A reranker is healed by pairs of some queries, and judged by those of others, so {len(sample)} pairs of "
            f"{queries} {'query' if queries == 1 else 'queries'} are too few. Pass a few thousand, of hundreds of queries."
        )
    return seen, held
