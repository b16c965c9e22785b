"""The best documents of each query, as a corpus goes by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Candidates", "Rankings"]

_NONE = -1


@dataclass(frozen=True)
class Rankings:
    """For some queries, the top k documents under each view.

    Args:
        rows: Rows of the corpus, best first; -1 where there is no document.
        scores: Similarities; minus infinity where there is no document.
    """

    rows: Int[Tensor, "views queries top"]
    scores: Float[Tensor, "views queries top"]

    @classmethod
    def none(cls, views: int, queries: int) -> Rankings:
        """Before any document was seen.

        Args:
            views: How many views.
            queries: How many queries.
        """
        return cls(torch.empty(views, queries, 0, dtype=torch.int32), torch.empty(views, queries, 0))

    def with_documents(
        self, rows: Int[Tensor, "#views queries new"], scores: Float[Tensor, "views queries new"], top_k: int
    ) -> Rankings:
        """The top k of these and more.

        Args:
            rows: Rows of the corpus that were not seen before.
            scores: Minus infinity for a document that is no candidate of a query.
            top_k: How many are kept.
        """
        all_scores = torch.cat([self.scores, scores], dim=2)
        all_rows = torch.cat([self.rows, rows.expand(*scores.shape).to(torch.int32)], dim=2)
        best = _order(all_scores, all_rows).topk(min(top_k, all_scores.shape[2]), dim=2).indices
        kept = all_scores.gather(2, best)
        return Rankings(all_rows.gather(2, best).masked_fill(kept == -torch.inf, _NONE), kept)


@dataclass(frozen=True)
class Candidates:
    """For some queries, the documents that are among the top k under any view, with their scores under every view.

    Args:
        rows: Which documents: rows of the corpus, -1 where a query has fewer than others.
        scores: Similarities; minus infinity where there is no document.
    """

    rows: Int[Tensor, "queries kept"]
    scores: Float[Tensor, "views queries kept"]

    @classmethod
    def none(cls, views: int, queries: int) -> Candidates:
        """Before any document was seen.

        Args:
            views: How many views.
            queries: How many queries.
        """
        return cls(torch.empty(queries, 0, dtype=torch.int32), torch.empty(views, queries, 0))

    def with_documents(
        self, rows: Int[Tensor, "queries new"], scores: Float[Tensor, "views queries new"], top_k: int
    ) -> Candidates:
        """These and more, as far as they are among the top k of a view.

        Args:
            rows: Rows of the corpus that were not seen before.
            scores: Minus infinity for a document that is no candidate of a query.
            top_k: How many a view keeps.
        """
        all_rows = torch.cat([self.rows, rows], dim=1)
        all_scores = torch.cat([self.scores, scores], dim=2)
        kept = torch.zeros_like(all_rows, dtype=torch.bool)
        for of_view in all_scores:
            best = _order(of_view, all_rows).topk(min(top_k, of_view.shape[1]), dim=1, sorted=False)
            kept.scatter_(1, best.indices, True)
        kept &= (all_rows != _NONE) & (all_scores[0] > -torch.inf)
        # Queries keep different numbers of documents: the kept ones go to the left, and the table is as wide as the longest.
        order = kept.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : int(kept.sum(1).max())]
        kept = kept.gather(1, order)
        return Candidates(
            all_rows.gather(1, order).masked_fill(~kept, _NONE),
            all_scores.gather(2, order.expand(len(all_scores), -1, -1)).masked_fill(~kept, -torch.inf),
        )


def _order(scores: Tensor, rows: Tensor) -> Tensor:
    """Integers in the order of scores, no two alike: of equal scores the lower row has the larger.

    Few bits make many scores equal. Which of these documents are kept must not depend on chunks, processes or other views.
    """
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # -0.0 becomes 0.0
    # As integers, the bits of floats above 0 are in the order of the floats, those of floats below 0 the other way round.
    return (torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) << 32) - rows
