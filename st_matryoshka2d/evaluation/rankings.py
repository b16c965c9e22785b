"""Similarities at many dims from one matrix product, and the top documents of each query over a chunked corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_EPSILON = 1e-12  # smallest norm by which sentence-transformers divides
_NONE = -1  # row number of an absent document


@dataclass(frozen=True)
class Rankings:
    """The top k documents of some queries under each variant."""

    rows: Int[Tensor, "variants queries top"]
    scores: Float[Tensor, "variants queries top"]

    @classmethod
    def none(cls, variants: int, queries: int) -> Rankings:
        """Before any document was seen."""
        return cls(torch.empty(variants, queries, 0, dtype=torch.int32), torch.empty(variants, queries, 0))

    def with_documents(
        self, rows: Int[Tensor, "#variants queries new"], scores: Float[Tensor, "variants queries new"], top_k: int
    ) -> Rankings:
        """Merge new documents into the top k."""
        all_scores = torch.cat([self.scores, scores], dim=2)
        all_rows = torch.cat([self.rows, rows.expand(*scores.shape).to(torch.int32)], dim=2)
        best = _order(all_scores, all_rows).topk(min(top_k, all_scores.shape[2]), dim=2).indices
        best_scores = all_scores.gather(2, best)
        return Rankings(all_rows.gather(2, best).masked_fill(best_scores == -torch.inf, _NONE), best_scores)


def _order(scores: Tensor, rows: Tensor) -> Tensor:
    """Map scores to distinct integers in the same order; among equal scores, the lower row comes first."""
    # Low precisions make many ties, and the result must not depend on chunks or other variants.
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # -0.0 becomes 0.0
    # Read as integers, positive floats keep their order, and negative floats reverse it.
    return (torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) << 32) - rows


@dataclass(frozen=True)
class BestDocuments:
    """The best documents of every query under every variant, in blocks of queries."""

    query_ids: list[str]
    blocks: list[Rankings]
    ids: dict[int, str] = field(repr=False)  # document ids by row of the corpus

    def of_variant(self, variant: int) -> dict[str, dict[str, float]]:
        """Similarities by query and document, best first, in mteb's form."""
        blocks = ((block.rows[variant], block.scores[variant]) for block in self.blocks)
        of_queries = (of_query for rows, scores in blocks for of_query in zip(rows.tolist(), scores.tolist(), strict=True))
        return {
            query: {self.ids[row]: score for row, score in zip(rows, scores, strict=True) if row >= 0}
            for query, (rows, scores) in zip(self.query_ids, of_queries, strict=True)
        }


def prefix_similarities(
    queries: Float[Tensor, "queries full"], documents: Float[Tensor, "documents full"], dims: Sequence[int], similarity: str
) -> Iterator[Float[Tensor, "queries documents"]]:
    """Yield the similarities of all queries and documents at ascending dims, each computed from the one before."""
    # Dot products, squared norms and Manhattan distances are sums over coordinates, so all dims
    # cost one product.
    total = queries.new_zeros(len(queries), len(documents))
    query_squares, document_squares = queries.new_zeros(len(queries), 1), documents.new_zeros(1, len(documents))
    for start, dim in pairwise([0, *dims]):
        query, document = queries[:, start:dim], documents[:, start:dim]
        if similarity == "manhattan":
            total = total - torch.cdist(query, document, p=1.0)
        else:
            total = torch.addmm(total, query, document.T)
        if similarity in ("manhattan", "dot"):
            yield total
            continue
        query_squares = query_squares + query.square().sum(1, keepdim=True)
        document_squares = document_squares + document.square().sum(1)
        if similarity == "euclidean":
            yield -(query_squares + document_squares - 2 * total).clamp_min(0).sqrt()
        else:
            yield total / query_squares.sqrt().clamp_min(_EPSILON) / document_squares.sqrt().clamp_min(_EPSILON)
