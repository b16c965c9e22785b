"""What is searched for, and what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from st_matryoshka2d.evaluation.search.candidates import Candidates, Rankings
from st_matryoshka2d.evaluation.views.views import View

if TYPE_CHECKING:
    from mteb.types import QueryDatasetType

__all__ = ["Found", "Search"]


@dataclass(frozen=True)
class Search:
    """What is searched for.

    Args:
        name: Split and subset.
        queries: Columns `id` and `text`, and `instruction` where there is one.
        top_k: Documents that each query gets.
        top_ranked: Where documents are only put in order: the ids of those of each query.
    """

    name: str
    queries: QueryDatasetType
    top_k: int
    top_ranked: Mapping[str, Sequence[str]] | None = None


@dataclass(frozen=True)
class Found:
    """The best documents of every query under every view.

    Args:
        query_ids: Ids of the queries.
        views: The views, in the order in which `rankings` and `candidates` have them.
        rankings: Of blocks of queries, one after the other.
        candidates: The same blocks; empty unless a shortlist was asked for.
        ids: Ids of the documents by their row in the corpus.
    """

    query_ids: list[str]
    views: list[View]
    rankings: list[Rankings]
    candidates: list[Candidates]
    ids: dict[int, str] = field(repr=False)

    def results(self, view: int) -> dict[str, dict[str, float]]:
        """Similarities by query and document, best first, as mteb wants them.

        Args:
            view: Which of `views`.
        """
        rows = [row for block in self.rankings for row in block.rows[view].tolist()]
        scores = [row for block in self.rankings for row in block.scores[view].tolist()]
        return {
            query: {self.ids[row]: score for row, score in zip(*of_query, strict=True) if row >= 0}
            for query, *of_query in zip(self.query_ids, rows, scores, strict=True)
        }
