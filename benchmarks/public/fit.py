"""The texts that a query side is fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from st_matryoshka2d.queries.stand_ins import StandIns

__all__ = ["Fit"]

_NOTHING = np.empty(0)  # the embedding of a document, which stand-ins do not need
_MOST = 10_000  # documents that stand in for queries, as `fit_queries` has it


@dataclass(frozen=True)
class Fit:
    """Documents, and questions that are not asked."""

    documents: Sequence[str]
    questions: Sequence[str]

    def short(self) -> list[str]:
        """Return texts like queries: the questions, and stand-ins made of the documents."""
        return list(dict.fromkeys([*self.questions, *stand_ins(self.documents)]))


def stand_ins(documents: Sequence[str]) -> list[str]:
    """Make texts like queries of documents, as `fit_queries` does."""
    drawn = StandIns(_MOST)
    for text in documents:
        drawn.add(text, _NOTHING)
    return drawn.texts()
