"""Variants: a size, precision and truncation to score, and how to compute its embeddings from the full ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.grid.costs import BITS
from st_matryoshka2d.grid.grid_tables import AXES, axis_labels
from st_matryoshka2d.sizes import Size


class Truncation(Protocol):
    """A way to reduce dims: it orders the coordinates, of which the first `dim` are kept."""

    @property
    def name(self) -> str:
        """Short unique name, for grids."""

    def __call__(self, embeddings: Tensor) -> Tensor:
        """Order or transform the coordinates."""


class _First:
    """The default truncation: keep the first coordinates."""

    name: str = AXES["truncation"]

    def __call__(self, embeddings: Tensor) -> Tensor:
        return embeddings


FIRST = _First()


@dataclass(frozen=True)
class Variant:
    """One scored configuration; `documents` is the document size if it differs from the query size."""

    size: Size
    precision: str = AXES["precision"]
    truncation: Truncation = FIRST
    documents: Size | None = None

    @property
    def axes(self) -> dict[str, str]:
        """The variant's values of a grid's optional axes."""
        documents = AXES["documents"] if self.documents is None else str(self.documents)
        return {"precision": self.precision, "truncation": self.truncation.name, "documents": documents}

    @property
    def document_layers(self) -> int:
        """Depth of the documents."""
        return (self.documents or self.size).num_layers

    def __str__(self) -> str:
        return " ".join([str(self.size), *axis_labels(self.axes)])


# Integer precisions, which are scaled to the range of some embeddings, and their lowest numbers.
RANGED = {"int8": -128, "uint8": 0, "int4": -8, "uint4": 0}


def precisions_of(given: str | Iterable[str]) -> list[str]:
    """Check one or several precisions and return them as a list."""
    stored = [given] if isinstance(given, str) else list(given)
    if not stored or len(set(stored)) < len(stored):
        raise UsageError(f"precisions must be at least one, each given once; got {stored}.")
    known = [name for name in BITS if name != "ubinary"]  # mteb does not have this one
    if unknown := [precision for precision in stored if precision not in known]:
        raise UsageError(f"precision must be one of {', '.join(known)}, got {unknown[0]!r}.")
    return stored


def ranges_of(embeddings: Tensor) -> Tensor:
    """Return the smallest and largest value of each coordinate, (2, dim), to which integers are scaled."""
    return torch.stack([embeddings.amin(0), embeddings.amax(0)])


def quantise(embeddings: Tensor, precision: str, ranges: Tensor | None = None) -> Tensor:
    """Reduce the precision of embeddings as mteb's `CompressionWrapper` does; the result is float32 again."""
    if precision == AXES["precision"]:
        return embeddings
    if precision == "binary":
        return (embeddings > 0).float()
    if precision not in RANGED:
        return embeddings.to(getattr(torch, precision)).float()
    low, high = ranges_of(embeddings) if ranges is None else ranges
    steps = (high - low) / (2 ** BITS[precision] - 1)
    numbers = torch.floor((torch.clamp(embeddings, low, high) - low) / steps) + RANGED[precision]
    return torch.nan_to_num(numbers.float())  # of a constant coordinate
