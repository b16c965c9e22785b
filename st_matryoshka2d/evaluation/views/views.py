"""What is scored: a size, and how the embeddings of that size are made from those of the whole model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from st_matryoshka2d.evaluation.grid.columns import AXES, told
from st_matryoshka2d.sizes import Size

__all__ = ["FIRST", "First", "Truncation", "View"]


class Truncation(Protocol):
    """A way to narrow embeddings, as an order of coordinates of which the first `dim` are kept.

    So that all dims of it come from one product of queries and documents, a truncation does not cut: it returns coordinates
    in the order in which they would be kept, and others cut them.
    """

    @property
    def name(self) -> str:
        """What a grid calls it: short, and different for two that differ."""
        ...

    def __call__(self, embeddings: Tensor, num_layers: int) -> Tensor:
        """Coordinates in the order in which they are kept.

        Args:
            embeddings: (texts, full dim), of one layer.
            num_layers: That layer.
        """
        ...


class First:
    """The plain truncation: coordinates stay in their order, so a prefix is kept."""

    name: str = AXES["truncation"]

    def __call__(self, embeddings: Tensor, num_layers: int) -> Tensor:
        """The embeddings as they are."""
        return embeddings


FIRST = First()


@dataclass(frozen=True)
class View:
    """One column of a grid's scores.

    Args:
        size: Which layer, and how many coordinates.
        precision: `"float32"`, or what mteb's `CompressionWrapper` makes of the coordinates: `"int8"`, `"binary"`, ...
        truncation: Which coordinates.
        documents: Size of the documents, or of the second texts of pairs, where it is another than that of the queries; as
            many of their coordinates are compared as the queries have. None: the same size.
    """

    size: Size
    precision: str = AXES["precision"]
    truncation: Truncation = field(default=FIRST)
    documents: Size | None = None

    @property
    def axes(self) -> dict[str, str]:
        """What a grid calls the view, beside its size."""
        documents = AXES["documents"] if self.documents is None else str(self.documents)
        return {"precision": self.precision, "truncation": self.truncation.name, "documents": documents}

    @property
    def document_layers(self) -> int:
        """Depth of the documents."""
        return (self.documents or self.size).num_layers

    def __str__(self) -> str:
        return " ".join([str(self.size), *told(self.axes)])
