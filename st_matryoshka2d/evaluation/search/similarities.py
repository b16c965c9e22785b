"""Similarities at many dims from one product: each dim adds its coordinates to the dim before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["prefix_similarities"]

# sentence-transformers divides by norms no smaller than this
_EPSILON = 1e-12


def prefix_similarities(
    queries: Float[Tensor, "queries full"], documents: Float[Tensor, "documents full"], dims: Sequence[int], similarity: str
) -> Iterator[Float[Tensor, "queries documents"]]:
    r"""Similarity of every query to every document at each of several dims.

    Dot products, squared norms and Manhattan distances of the first d coordinates are sums over coordinates, so those of the
    next dim e are these plus a sum over the coordinates between: \(q_{:e} c_{:e} = q_{:d} c_{:d} + q_{d:e} c_{d:e}\). All
    dims together cost one product of the full width.

    Args:
        queries: Embeddings.
        documents: Embeddings.
        dims: Ascending.
        similarity: Name of one of sentence-transformers' similarity functions: cosine, dot, euclidean or manhattan.

    Yields:
        A new tensor for each dim.

    Example:
        >>> queries, documents = torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 4.0]])
        >>> [round(scores.item(), 2) for scores in prefix_similarities(queries, documents, [1, 2], "cosine")]
        [1.0, 0.6]
    """
    total = queries.new_zeros(len(queries), len(documents))
    query_squares, document_squares = queries.new_zeros(len(queries), 1), documents.new_zeros(1, len(documents))
    start = 0
    for dim in dims:
        query, document = queries[:, start:dim], documents[:, start:dim]
        start = dim
        if similarity == "manhattan":
            total = total - torch.cdist(query, document, p=1.0)
            yield total
            continue
        total = torch.addmm(total, query, document.T)
        if similarity == "dot":
            yield total
            continue
        query_squares = query_squares + query.square().sum(1, keepdim=True)
        document_squares = document_squares + document.square().sum(1)
        if similarity == "euclidean":
            yield -(query_squares + document_squares - 2 * total).clamp_min(0).sqrt()
        else:
            yield total / query_squares.sqrt().clamp_min(_EPSILON) / document_squares.sqrt().clamp_min(_EPSILON)
