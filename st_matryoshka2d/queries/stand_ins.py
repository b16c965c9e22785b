"""Stand-ins for queries: a short piece of each document of a random sample."""

from __future__ import annotations

import random

_WORDS = 4, 14  # of a piece
_CHARACTERS = 6  # for a word of a language that does not put spaces between words


class StandIns:
    """Draws a sample of documents, and a piece of each."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.texts: list[str] = []
        self._draw, self._seen = random.Random(0), 0

    def add(self, document: str) -> None:
        """Take a document into the sample, or not."""
        self._seen += 1
        if len(self.texts) < self.most:
            self.texts.append(self._piece(document))
        elif (place := self._draw.randrange(self._seen)) < self.most:
            self.texts[place] = self._piece(document)

    def _piece(self, document: str) -> str:
        words, number = document.split(), self._draw.randint(*_WORDS)
        if len(words) * 4 * _CHARACTERS < len(document):
            first = self._draw.randrange(max(1, len(document) - number * _CHARACTERS + 1))
            return document[first : first + number * _CHARACTERS]
        first = self._draw.randrange(max(1, len(words) - number + 1))
        return " ".join(words[first : first + number])
