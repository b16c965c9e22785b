"""Stand-ins for queries, made from a random sample of the documents."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

_LONGEST = 10_000  # characters of a document that are kept
_WORDS = 4, 14  # of a piece
_KEYWORDS = 2, 8
_CHARACTERS = 6  # for a word of a language that does not put spaces between words


class StandIns:
    """Draws a sample of documents, and makes texts like queries of each: how it begins, a piece of it, and its rare words.

    The beginning is often a title, which is most like a query.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.documents: list[str] = []
        self.embedded: list[Float[np.ndarray, " dim"]] = []
        self._draw, self._seen = random.Random(0), 0

    def add(self, document: str, embedded: Float[np.ndarray, " dim"]) -> None:
        """Take a document and its embedding into the sample, or not."""
        self._seen += 1
        if len(self.documents) < self.most:
            self.documents.append(document[:_LONGEST])
            self.embedded.append(embedded.copy())
        elif (place := self._draw.randrange(self._seen)) < self.most:
            self.documents[place], self.embedded[place] = document[:_LONGEST], embedded.copy()

    def texts(self) -> list[str]:
        """Return each stand-in once."""
        return list(dict.fromkeys(text for of_one in self.by_document() for text in of_one if text.strip()))

    def by_document(self) -> list[tuple[str, str, str]]:
        """Return the beginning, a piece and the rare words of each document of the sample."""
        split = [list(dict.fromkeys(re.findall(r"\w+", document.lower()))) for document in self.documents]
        frequency = Counter(word for words in split for word in words)
        return [
            (self._piece(document, start=True), self._piece(document), self._keywords(words, frequency))
            for document, words in zip(self.documents, split, strict=True)
        ]

    def _piece(self, document: str, *, start: bool = False) -> str:
        words, number = document.split(), self._draw.randint(*_WORDS)
        if len(words) * 4 * _CHARACTERS < len(document):
            first = 0 if start else self._draw.randrange(max(1, len(document) - number * _CHARACTERS + 1))
            return document[first : first + number * _CHARACTERS]
        first = 0 if start else self._draw.randrange(max(1, len(words) - number + 1))
        return " ".join(words[first : first + number])

    def _keywords(self, words: list[str], frequency: Counter[str]) -> str:
        """Return some words, in their order: more likely those of few documents."""
        rarity = {word: math.log(len(self.documents) / frequency[word]) * self._draw.random() ** 0.3 for word in words}
        chosen = {*sorted(words, key=lambda word: -rarity[word])[: self._draw.randint(*_KEYWORDS)]}
        return " ".join(word for word in words if word in chosen)
