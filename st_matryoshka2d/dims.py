"""Width: which coordinates of an embedding are kept."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

__all__ = ["prefix"]


def prefix(embeddings: Float[Tensor, "*batch full"], dim: int) -> Float[Tensor, "*batch dim"]:
    """Keep the first `dim` coordinates, as `SentenceTransformer(truncate_dim=dim)` does."""
    # Not normalised again, here as in training, in the grid and in a saved cut. Cosine similarity does not notice; dot
    # product and Euclidean distance do. For unit vectors, `encode` takes `normalize_embeddings=True`.
    if dim > embeddings.shape[-1]:
        raise ValueError(f"dim={dim} is wider than the embeddings, which have {embeddings.shape[-1]} coordinates.")
    return embeddings[..., :dim]
