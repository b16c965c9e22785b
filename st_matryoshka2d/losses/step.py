"""What one training step has embedded, and what a term may ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_matryoshka2d.dims import prefix
from st_matryoshka2d.sizes import Size

__all__ = ["Step", "Term", "check_terms"]


@dataclass(frozen=True)
class Step:
    """One batch, embedded at every layer that this step needs.

    Attributes:
        columns: For each layer one tensor (batch, D) per text column of the dataset.
        weights: The sizes trained in this step and the weight of the wrapped loss at each.
        full: Size of the whole model, (N, D).
        similarity: Matrix form of the wrapped loss's similarity: (a, d) and (b, d) to (a, b).
        inputs: Features of each text column, as the model was given them.
        labels: What the dataset's label column holds, if it has one.
    """

    columns: Mapping[int, list[Float[Tensor, "batch full"]]]
    weights: Mapping[Size, float]
    full: Size
    similarity: Callable[[Tensor, Tensor], Tensor]
    inputs: Sequence[Mapping[str, Any]]
    labels: Tensor | None

    def embeddings(self, size: Size) -> list[Float[Tensor, "batch dim"]]:
        """The text columns as the sub-model of this size embeds them."""
        return [prefix(column, size.dim) for column in self.columns[size.num_layers]]


class Term(nn.Module, ABC):
    """Something added to the wrapped loss, for example an alignment of small sizes with the full one.

    Attributes:
        name: Key of its value among the named parts of the loss.
        uses_similarity: Whether it compares texts with the wrapped loss's similarity.
    """

    name: str
    uses_similarity: bool = False

    def attach(self, model: SentenceTransformer) -> None:
        """Get ready to train a model; called once, when the loss is built.

        Args:
            model: The model to train.
        """

    def sizes_needed(self, trained: Mapping[Size, float], full: Size) -> set[Size]:
        """Sizes that must be embedded beside those that are trained anyway, for example a teacher.

        Args:
            trained: The sizes of the step with their weights.
            full: Size of the whole model.
        """
        return set()

    @abstractmethod
    def forward(self, step: Step) -> Tensor:
        """Value of the term for a batch, already weighted: a scalar."""

    @abstractmethod
    def get_config_dict(self) -> dict[str, object]:
        """Settings, for the model card."""


def check_terms(terms: Iterable[Term]) -> list[Term]:
    """Refuse what is not a term.

    Args:
        terms: What the user passed.

    Raises:
        TypeError: Something else is among them.
    """
    if isinstance(terms, nn.Module) and not isinstance(terms, nn.ModuleList):
        raise TypeError(f"terms must be a list of Term objects, got one {type(terms).__name__}; wrap it: [term].")
    checked = list(terms)
    for term in checked:
        if not isinstance(term, Term):
            raise TypeError(f"terms must be Term objects such as KLAlignment(), got {type(term).__name__}.")
    return checked
