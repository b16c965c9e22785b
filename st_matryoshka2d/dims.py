"""Width: which coordinates of an embedding are kept, and which dims a model says it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxtyping import Float
from torch import Tensor

__all__ = ["declare_dims", "declared_dims", "prefix"]


def prefix(embeddings: Float[Tensor, "*batch full"], dim: int) -> Float[Tensor, "*batch dim"]:
    """Keep the first `dim` coordinates, as `SentenceTransformer(truncate_dim=dim)` does."""
    # Not normalised again, here as in training, in the grid and in a saved cut. Cosine similarity does not notice; dot
    # product and Euclidean distance do. For unit vectors, `encode` takes `normalize_embeddings=True`.
    if dim > embeddings.shape[-1]:
        raise ValueError(f"dim={dim} is wider than the embeddings, which have {embeddings.shape[-1]} coordinates.")
    return embeddings[..., :dim]


def declare_dims(config: Any, dims: Iterable[int]) -> None:
    """Write a model's dims into its config, under the two keys that vLLM and other servers read."""
    config.is_matryoshka = True
    config.matryoshka_dimensions = sorted(set(dims))


def declared_dims(config: Any) -> list[int]:
    """The dims that a model's config declares."""
    return list(getattr(config, "matryoshka_dimensions", None) or [])
