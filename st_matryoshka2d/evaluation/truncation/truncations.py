"""Ways to narrow embeddings other than keeping the first coordinates: the baselines that matryoshka training has to beat."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_matryoshka2d.encode import encode_sizes
from st_matryoshka2d.layers import transformer_of
from st_matryoshka2d.sizes import Size, all_within, full_size

__all__ = ["PCA", "RandomSubset", "Window"]


@dataclass(frozen=True)
class RandomSubset:
    """Random coordinates: those of a small dim are among those of every larger one.

    "Randomly Removing 50% of Dimensions in Text Embeddings" (Takeshita et al., 2025) found that this costs little. The order
    comes from a generator of its own, whose numbers Python keeps the same on all machines and in all versions.

    Args:
        seed: Of the generator, 0 or more.

    Raises:
        TypeError: The seed is not an integer.
        ValueError: The seed is below 0.

    Example:
        >>> RandomSubset(0)(torch.tensor([[10.0, 11.0, 12.0, 13.0]]), num_layers=6)
        tensor([[13., 12., 11., 10.]])
    """

    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", _natural(self.seed, "seed"))  # the class is frozen

    @property
    def name(self) -> str:
        """`random-` and the seed."""
        return f"random-{self.seed}"

    def __call__(self, embeddings: Float[Tensor, "texts full"], num_layers: int) -> Float[Tensor, "texts full"]:
        """The coordinates shuffled, in the same way at every layer."""
        generator = random.Random(self.seed)
        draws = [generator.random() for _ in range(embeddings.shape[-1])]
        return embeddings[..., sorted(range(len(draws)), key=draws.__getitem__)]


@dataclass(frozen=True)
class Window:
    """Coordinates that follow each other, from one that is not the first; after the last comes the first again.

    Args:
        start: How many coordinates lie before it.

    Raises:
        TypeError: The start is not an integer.
        ValueError: The start is below 0, or beyond the embeddings.

    Example:
        >>> Window(2)(torch.tensor([[10.0, 11.0, 12.0, 13.0]]), num_layers=6)
        tensor([[12., 13., 10., 11.]])
    """

    start: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", _natural(self.start, "start"))  # the class is frozen

    @property
    def name(self) -> str:
        """`window-` and the start."""
        return f"window-{self.start}"

    def __call__(self, embeddings: Float[Tensor, "texts full"], num_layers: int) -> Float[Tensor, "texts full"]:
        """The coordinates from `start` on, then those before it."""
        if self.start >= embeddings.shape[-1]:
            raise ValueError(f"start={self.start}: the embeddings have {embeddings.shape[-1]} coordinates, counted from 0.")
        return embeddings.roll(-self.start, dims=-1)


@dataclass(frozen=True, eq=False)
class PCA:
    r"""Principal components: centred embeddings, rotated so that the first coordinates vary most. Make one with `PCA.fit`.

    With mean :math:`\mu` and covariance :math:`C = V \Lambda V^\top` of a sample, an embedding e becomes
    :math:`V^\top (e - \mu)`. At the full dim nothing but the mean is lost.

    Args:
        name: `pca-` and eight digits that differ where the sample differs, so that a cache of scores tells them apart.
        bases: For each layer the mean, (full,), and the components as columns, (full, full).

    Example:
        >>> pca = PCA.fit(model, [f"{n} cats and {n % 7} dogs" for n in range(400)], num_layers=6)
        >>> rotated = pca(torch.from_numpy(model.encode(["three cats", "a dog"])), num_layers=6)
        >>> rotated.shape
        torch.Size([2, 384])
    """

    name: str
    bases: Mapping[int, tuple[Float[Tensor, " full"], Float[Tensor, "full full"]]]

    @classmethod
    def fit(
        cls,
        model: SentenceTransformer,
        texts: Iterable[str],
        num_layers: int | Iterable[int] | None = None,
        *,
        batch_size: int = 32,
        show_progress_bar: bool = False,
    ) -> PCA:
        """Find the components of a sample of texts.

        Args:
            model: Any `SentenceTransformer` that starts with a `Transformer`.
            texts: More than the model has dims, each counted once. They must not be those of the task that is then scored:
                components that have seen the test texts look better than they are.
            num_layers: Depths at which components are wanted; None for the full one.
            batch_size: Texts in a batch of the model.
            show_progress_bar: Show one while texts are embedded.

        Raises:
            TypeError: `texts` is one string, or the model is not a `SentenceTransformer`.
            ValueError: There are too few texts, a depth is not within the model, or embeddings are not finite.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be a list of texts, got one string.")
        transformer_of(model)
        full = full_size(model)
        layers = all_within(full.num_layers if num_layers is None else num_layers, full.num_layers, "num_layers")
        sample = list(dict.fromkeys(texts))
        if len(sample) <= full.dim:
            raise ValueError(
                f"Components of {full.dim} dims need at least {full.dim + 1} different texts, got {len(sample)}. "
                "Give more texts; ten for each dim is a good sample."
            )
        at_layer = {layer: Size(layer, full.dim) for layer in layers}
        embeddings = encode_sizes(
            model, sample, at_layer.values(), batch_size=batch_size, show_progress_bar=show_progress_bar
        )
        digest = sha256("\0".join(sorted(sample)).encode("utf-8", "surrogatepass")).hexdigest()
        return cls(f"pca-{digest[:8]}", {layer: _basis(embeddings[size]) for layer, size in at_layer.items()})

    def __call__(self, embeddings: Float[Tensor, "texts full"], num_layers: int) -> Float[Tensor, "texts full"]:
        """The embeddings in the components of that layer, largest variance first."""
        if num_layers not in self.bases:
            raise ValueError(
                f"This PCA was fitted at layers {sorted(self.bases)}, not at {num_layers}; pass that to PCA.fit as well."
            )
        mean, components = (part.to(embeddings) for part in self.bases[num_layers])
        return (embeddings - mean) @ components


def _basis(sample: NDArray[np.floating]) -> tuple[Tensor, Tensor]:
    """Mean and components of a sample (texts, full), computed in float64."""
    mean = sample.mean(axis=0, dtype=np.float64)
    if not np.isfinite(mean).all():
        raise ValueError("The model's embeddings of the sample are not all finite, so they have no principal components.")
    centred = sample - mean
    _, ascending = np.linalg.eigh(centred.T @ centred)
    components = ascending[:, ::-1]
    # An eigenvector is one up to its sign: the largest entry is made positive, so that every machine finds the same.
    largest = np.abs(components).argmax(axis=0)
    components = components * np.sign(components[largest, range(len(components))])
    return torch.from_numpy(mean).float(), torch.from_numpy(components).float()


def _natural(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer of 0 or more, got {value!r} ({type(value).__name__}).")
    if value < 0:
        raise ValueError(f"{name} must be 0 or more, got {value}.")
    return int(value)
