"""The embeddings of a training step, the terms that read them, and the parts that a loss returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.sizes import Size, as_size, prefix

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Tokens:
    """Token states of a mini-batch at one layer.

    Attributes:
        states: Token states of the model cut at this layer, after the final norm of pre-norm
            models.
        mask: True for tokens of the text, False for padding.
        pooled: The embedding before normalisation: the CLS state or the mean, depending on the
            model's pooling.
    """

    states: Float[Tensor, "batch tokens hidden"]
    mask: Bool[Tensor, "batch tokens"]
    pooled: Float[Tensor, "batch full"]


@dataclass(frozen=True)
class Step:
    """One batch, embedded at every layer that this step needs.

    Attributes:
        columns: For each layer, one tensor (batch, D) per text column of the dataset.
        raw: The same before the pipeline's `Normalize`, if it has one.
        observed: Output of each term's `observe`: one tensor (batch, `term.observes`) per text
            column.
        weights: The sizes trained in this step, with the weight of the wrapped loss at each; in
            evaluation every candidate, with its mean weight over all draws.
        shares: For each of these sizes, the share of the draws that have it: 1 in training.
        full: Size of the whole model.
        similarity: Matrix form of the wrapped loss's similarity: (a, d) and (b, d) to (a, b).
        gather: Whether to compare texts across all processes.
        inputs: Features of each text column, as passed to the model.
        labels: The dataset's label column, if it has one.
    """

    columns: Mapping[int, list[Float[Tensor, "batch full"]]]
    raw: Mapping[int, list[Float[Tensor, "batch full"]]]
    observed: Mapping[Term, list[Float[Tensor, "batch observed"]]]
    weights: Mapping[Size, float]
    shares: Mapping[Size, float]
    full: Size
    similarity: Callable[[Tensor, Tensor], Tensor]
    gather: bool
    inputs: Sequence[Mapping[str, Any]]
    labels: Tensor | None

    def embeddings(self, size: Size | str) -> list[Float[Tensor, "batch dim"]]:
        """Return the embeddings of each text column at this size."""
        return _at(self.columns, size)

    def raw_embeddings(self, size: Size | str) -> list[Float[Tensor, "batch dim"]]:
        """Return the embeddings of each text column at this size, before `Normalize`."""
        return _at(self.raw, size)

    def mean(self, losses: Iterable[Tensor]) -> Tensor:
        """Return the mean of one scalar per size of `weights`; in evaluation the mean over all draws."""
        shared = [share * loss for share, loss in zip(self.shares.values(), losses, strict=True)]
        return torch.stack(shared).sum() / sum(self.shares.values())


def _at(columns: Mapping[int, list[Tensor]], given: Size | str) -> list[Tensor]:
    size = as_size(given, "size")
    if size.num_layers not in columns:
        raise UsageError(f"{size} was not embedded in this step, only layers {sorted(columns)}. Add it to `sizes_needed`.")
    return [prefix(column, size.dim) for column in columns[size.num_layers]]


class Term(nn.Module, ABC):
    """A term added to the wrapped loss, for example an alignment of small sizes with the full one.

    A term that reads embeddings only needs `forward` and `get_config_dict`. One that reads token
    states also names their layers in `layers_observed`, and computes a few numbers per text in
    `observe`, while the states are in memory; gradient caching caches them too.

    Attributes:
        uses_similarity: Whether the term uses the wrapped loss's similarity.
        uses_raw: Whether the term reads embeddings before `Normalize`.
        observes: How many numbers `observe` returns per text.
    """

    uses_similarity: bool = False
    uses_raw: bool = False
    observes: int = 0

    def attach(self, model: SentenceTransformer) -> None:
        """Prepare to train a model; called once, when the loss is built."""

    def sizes_needed(self, trained: Mapping[Size, float], full: Size) -> set[Size]:
        """Return the sizes to embed besides those trained in a step, for example a teacher.

        Args:
            trained: The sizes of the step with their weights.
            full: Size of the whole model.
        """
        return set()

    def layers_observed(self) -> set[int]:
        """Return the layers whose token states `observe` reads."""
        return set()

    def observe(self, tokens: Mapping[int, Tokens]) -> Float[Tensor, "batch observed"]:
        """Compute the numbers of each text from its token states at `layers_observed`."""
        raise NotImplementedError

    @abstractmethod
    def forward(self, step: Step) -> dict[str, Tensor]:
        """Return the named parts of the loss for a batch: weighted scalars."""

    @abstractmethod
    def get_config_dict(self) -> dict[str, object]:
        """Settings for the model card."""


class Parts(dict[str, Tensor]):
    """Named parts that sum to a loss: sentence-transformers' Trainer adds them up and logs each."""

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Back-propagate from the sum, for training loops that expect one number, such as `old_fit`."""
        torch.stack(list(self.values())).sum().backward(*args, **kwargs)


def check_parts(term: Term, parts: object) -> Mapping[str, Tensor]:
    """Check that a term returned a dict of scalars."""
    if isinstance(parts, dict) and all(isinstance(value, Tensor) and value.ndim == 0 for value in parts.values()):
        return parts
    name = type(term).__name__
    raise UsageTypeError(f"{name}.forward must return a dict of names and scalar tensors, got {parts!r:.80}.")


def check_terms(terms: Iterable[Term]) -> list[Term]:
    """Check that `terms` is a list of terms."""
    checked = list(terms)
    for term in checked:
        if not isinstance(term, Term):
            raise UsageTypeError(f"terms must be Term objects such as [KLAlignment()], got {term!r:.80}.")
        has_method = type(term).observe is not Term.observe
        if bool(term.observes) != has_method:
            raise UsageTypeError(
                f"{type(term).__name__} has {'an' if has_method else 'no'} `observe` method, but observes={term.observes}; "
                "it must be how many numbers the method returns per text."
            )
    return checked
