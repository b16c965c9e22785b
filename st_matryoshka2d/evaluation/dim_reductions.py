"""Ways to reduce dims other than keeping the first coordinates: baselines for matryoshka training."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_matryoshka2d.encoding.encode_sizes import encode_sizes
from st_matryoshka2d.encoding.texts import filled_texts
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.token_table import least_depth
from st_matryoshka2d.sizes import Size, all_within, positive_int

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class RandomSubset:
    """Random coordinates (Takeshita et al., 2025), nested: the subset for a small dim is part of that for a larger dim."""

    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", positive_int(self.seed, "seed", least=0))  # the class is frozen

    @property
    def name(self) -> str:
        """`random-` with the seed."""
        return f"random-{self.seed}"

    def __call__(self, embeddings: Float[Tensor, "texts full"], num_layers: int) -> Float[Tensor, "texts full"]:
        """Shuffle the coordinates, in the same way at every layer."""
        generator = random.Random(self.seed)  # reproducible on all machines and Python versions
        draws = [generator.random() for _ in range(embeddings.shape[-1])]
        return embeddings[..., sorted(range(len(draws)), key=draws.__getitem__)]


@dataclass(frozen=True)
class Window:
    """Consecutive coordinates from `start` on, wrapping around at the end."""

    start: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", positive_int(self.start, "start", least=0))  # the class is frozen

    @property
    def name(self) -> str:
        """`window-` with the start."""
        return f"window-{self.start}"

    def __call__(self, embeddings: Float[Tensor, "texts full"], num_layers: int) -> Float[Tensor, "texts full"]:
        """Rotate the coordinates so that `start` comes first."""
        if self.start >= embeddings.shape[-1]:
            raise UsageError(f"start={self.start}: the embeddings have {embeddings.shape[-1]} coordinates, counted from 0.")
        return embeddings.roll(-self.start, dims=-1)


@dataclass(frozen=True, eq=False)
class PCA:
    """Principal components: embeddings centred and rotated by decreasing variance. Create it with `PCA.fit`."""

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
        """Fit the components on a sample of texts."""
        pipeline = Pipeline.of(model)
        _, full = pipeline.transformer, pipeline.full
        layers = all_within(
            full.num_layers if num_layers is None else num_layers, full.num_layers, "num_layers", least_depth(model)
        )
        sample = list(dict.fromkeys(filled_texts(texts)))
        if len(sample) <= full.dim:
            raise UsageError(
                f"Components of {full.dim} dims need at least {full.dim + 1} different texts, got {len(sample)}. "
                "Ten texts per dim are a good sample."
            )
        at_layer = {layer: Size(layer, full.dim) for layer in layers}
        embeddings = encode_sizes(
            model, sample, at_layer.values(), batch_size=batch_size, show_progress_bar=show_progress_bar
        )
        digest = sha256("\0".join(sorted(sample)).encode("utf-8", "surrogatepass")).hexdigest()
        return cls(f"pca-{digest[:8]}", {layer: _basis(embeddings[size]) for layer, size in at_layer.items()})

    def __call__(self, embeddings: Float[Tensor, "texts full"], num_layers: int) -> Float[Tensor, "texts full"]:
        """Project embeddings onto the components of a layer, largest variance first."""
        if num_layers not in self.bases:
            raise UsageError(
                f"This PCA was fitted at layers {sorted(self.bases)}, not at {num_layers}; pass it to PCA.fit as well."
            )
        mean, components = (part.to(embeddings) for part in self.bases[num_layers])
        return (embeddings - mean) @ components


def _basis(sample: NDArray[np.floating]) -> tuple[Tensor, Tensor]:
    """Compute mean and components of a sample (texts, full) in float64."""
    mean = sample.mean(axis=0, dtype=np.float64)
    if not np.isfinite(mean).all():
        raise UsageError("The model's embeddings of the sample are not all finite, so they have no principal components.")
    centred = sample - mean
    _, ascending = np.linalg.eigh(centred.T @ centred)
    components = ascending[:, ::-1]
    # The sign of an eigenvector is arbitrary: make the largest entry positive, for the same result on every machine.
    largest = np.abs(components).argmax(axis=0)
    components = components * np.sign(components[largest, range(len(components))])
    return torch.from_numpy(mean).float(), torch.from_numpy(components).float()
