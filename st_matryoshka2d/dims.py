"""Width: which coordinates of an embedding are kept, and which dims a model says it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxtyping import Float
from torch import Tensor

__all__ = ["declare_dims", "declared_dims", "prefix"]


def prefix(embeddings: Float[Tensor, "*batch full"], dim: int) -> Float[Tensor, "*batch dim"]:
    """Keep the first `dim` coordinates, as `SentenceTransformer(truncate_dim=dim)` does.

    The result is *not* normalised again, here as in training, in the grid and in a saved cut. Cosine similarity does not
    notice; dot product and Euclidean distance do. Whoever needs unit vectors passes `normalize_embeddings=True` to `encode`.

    Args:
        embeddings: Any leading shape, coordinates last.
        dim: How many to keep.

    Raises:
        ValueError: There are fewer than `dim` coordinates.

    Example:
        >>> import torch
        >>> prefix(torch.tensor([[0.6, 0.0, 0.8]]), dim=2)
        tensor([[0.6000, 0.0000]])
    """
    if dim > embeddings.shape[-1]:
        raise ValueError(f"dim={dim} is wider than the embeddings, which have {embeddings.shape[-1]} coordinates.")
    return embeddings[..., :dim]


def declare_dims(config: Any, dims: Iterable[int]) -> None:
    """Write into a model's config which dims it may be asked for, under the two keys that vLLM and other servers read.

    Args:
        config: The Hugging Face config that is saved with the model.
        dims: The dims.
    """
    config.is_matryoshka = True
    config.matryoshka_dimensions = sorted(set(dims))


def declared_dims(config: Any) -> list[int]:
    """The dims that a model's config declares; none for a model that says nothing.

    Args:
        config: The Hugging Face config of the model.
    """
    return list(getattr(config, "matryoshka_dimensions", None) or [])
