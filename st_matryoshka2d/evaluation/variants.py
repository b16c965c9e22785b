"""What is scored: a size, a precision, a choice of coordinates, and how they are made of a whole model's embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from mteb.models import CompressionWrapper, ModelMeta
from mteb.types import OutputDType
from torch import Tensor

from st_matryoshka2d.evaluation.grid_io import AXES, told
from st_matryoshka2d.evaluation.pivots import BITS
from st_matryoshka2d.evaluation.tasks import quiet_mteb
from st_matryoshka2d.sizes import Size


class Truncation(Protocol):
    """A way to narrow embeddings, as an order of coordinates of which the first `dim` are kept."""

    @property
    def name(self) -> str:
        """What a grid calls it: short, and different for two that differ."""

    def __call__(self, embeddings: Tensor, num_layers: int) -> Tensor:
        """Coordinates in the order in which they are kept."""


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
    known = [name for name in BITS if name != "ubinary"]  # which is sentence-transformers' own
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
    if precision in RANGED and ranges is not None:
        # The wrapper takes its ranges from what it is given: with the two extremes on top, they are the ones wanted.
        return quantise(torch.cat([ranges, torch.clamp(embeddings, ranges[0], ranges[1])]), precision)[2:]
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
