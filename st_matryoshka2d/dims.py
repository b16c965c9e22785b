"""Width: which coordinates of an embedding are kept."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from st_matryoshka2d.errors import UsageError


def prefix(embeddings: Float[Tensor, "*batch full"], dim: int) -> Float[Tensor, "*batch dim"]:
    """Keep the first `dim` coordinates, as `SentenceTransformer(truncate_dim=dim)` does."""
    # Training, evaluation and saved cuts all use this function: none of them normalises again. That does not affect cosine
    # similarity, but dot products and distances. For unit vectors, pass `normalize_embeddings=True` to `encode`.
    if dim > embeddings.shape[-1]:
        raise UsageError(f"dim={dim} is wider than the embeddings, which have {embeddings.shape[-1]} coordinates.")
    return embeddings[..., :dim]
