"""What is scored: a size, a precision, a choice of coordinates, and how they are made of a whole model's embeddings."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from numbers import Integral
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from mteb.models import CompressionWrapper, ModelMeta
from mteb.types import OutputDType
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_matryoshka2d.encode import encode_sizes
from st_matryoshka2d.evaluation.grid_io import AXES, told
from st_matryoshka2d.evaluation.tasks import quiet_mteb
from st_matryoshka2d.layers import transformer_of
from st_matryoshka2d.sizes import Size, all_within, full_size


class Truncation(Protocol):
    """A way to narrow embeddings, as an order of coordinates of which the first `dim` are kept."""

    @property
    def name(self) -> str:
        """What a grid calls it: short, and different for two that differ."""
        ...

    def __call__(self, embeddings: Tensor, num_layers: int) -> Tensor:
        """Coordinates in the order in which they are kept."""
        ...


class First:
    """The plain truncation: coordinates stay in their order, so a prefix is kept."""

    name: str = AXES["truncation"]

    def __call__(self, embeddings: Tensor, num_layers: int) -> Tensor:
        """The embeddings as they are."""
        return embeddings


FIRST = First()


@dataclass(frozen=True)
class Variant:
    """One column of a grid's scores; `documents` is their size where it is another than that of the queries."""

    size: Size
    precision: str = AXES["precision"]
    truncation: Truncation = field(default=FIRST)
    documents: Size | None = None

    @property
    def axes(self) -> dict[str, str]:
        """What a grid calls the variant, beside its size."""
        documents = AXES["documents"] if self.documents is None else str(self.documents)
        return {"precision": self.precision, "truncation": self.truncation.name, "documents": documents}

    @property
    def depths(self) -> set[int]:
        """Depths of both sides."""
        return {self.size.num_layers, self.document_layers}

    @property
    def document_layers(self) -> int:
        """Depth of the documents."""
        return (self.documents or self.size).num_layers

    def __str__(self) -> str:
        return " ".join([str(self.size), *told(self.axes)])


# Integers, which are spread over the ranges of some embeddings.
RANGED = {"int8", "uint8", "int4", "uint4"}


def precisions_of(given: str | Iterable[str]) -> list[str]:
    """One or several precisions that mteb knows, each once."""
    stored = [given] if isinstance(given, str) else list(given)
    if not stored or len(set(stored)) < len(stored):
        raise ValueError(f"Give each precision once, and at least one; got {stored}.")
    known = [AXES["precision"], *sorted(RANGED), "binary", "float16", "bfloat16"]
    if unknown := [precision for precision in stored if precision not in known]:
        raise ValueError(f"precision must be one of {', '.join(known)}, got {unknown[0]!r}.")
    return stored


def ranges_of(embeddings: Tensor) -> Tensor:
    """Smallest and largest value of each coordinate, (2, dim): what integers are spread over."""
    return torch.stack([embeddings.amin(0), embeddings.amax(0)])


def quantise(embeddings: Tensor, precision: str, ranges: Tensor | None = None) -> Tensor:
    """Embeddings with fewer bits, as float32 numbers."""
    if precision == AXES["precision"]:
        return embeddings
    if precision not in RANGED or ranges is None:
        return _compressed(embeddings, precision)
    # The wrapper takes its ranges from what it is given: with the two extremes on top, they are the ones wanted.
    clipped = torch.clamp(embeddings, ranges[0], ranges[1])
    return _compressed(torch.cat([ranges, clipped]), precision)[2:]


def _compressed(embeddings: Tensor, precision: str) -> Tensor:
    with quiet_mteb(UserWarning):  # that there are few embeddings to take ranges from, which it says of every chunk
        wrapper = CompressionWrapper(_Given(embeddings), OutputDType(precision))  # type: ignore[arg-type]
        compressed = wrapper.encode(None, task_metadata=None, hf_split="", hf_subset="")  # type: ignore[arg-type]
    # A coordinate that is the same in all texts has no range, which mteb makes NaN of.
    return torch.nan_to_num(torch.as_tensor(compressed).float())


class _Given:
    """An encoder, as far as the wrapper looks, that has its embeddings already."""

    def __init__(self, embeddings: Tensor) -> None:
        self._embeddings = embeddings
        self.mteb_model_meta = ModelMeta.create_empty()

    def encode(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._embeddings


@dataclass(frozen=True)
class RandomSubset:
    """Random coordinates: those of a small dim are among those of every larger one."""

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
    """Coordinates that follow each other, from one that is not the first; after the last comes the first again."""

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
    """Principal components: centred embeddings, rotated so that the first coordinates vary most. Make one with `PCA.fit`."""

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
        """Find the components of a sample of texts."""
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
