"""Embed the texts of a step at all its layers in one pass, with or without sentence-transformers' gradient cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from sentence_transformers.base.losses import CachedLossMixin, RandContext
from torch import Tensor, nn

from st_matryoshka2d._hosts.sentence_transformers import embed_mini_batch
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.losses.distributed import average_gradient, reaching_heads
from st_matryoshka2d.losses.step import Term, Tokens
from st_matryoshka2d.model.backbone import Backbone
from st_matryoshka2d.model.depths import layer_features
from st_matryoshka2d.model.pipeline import Pipeline, unwrap

Column: TypeAlias = Tensor  # (texts, values)


@dataclass(frozen=True)
class Representation:
    """Layout of all values that a step needs of a text, in one row that the gradient cache treats as an embedding."""

    layers: Sequence[int]  # their embeddings come first
    observers: Sequence[Term]  # their numbers follow
    raw: bool  # whether embeddings are before `Normalize`, which `finish` applies

    def embed(self, model: nn.Module, features: dict[str, Any], backbones: Mapping[str, Backbone]) -> dict[str, Column]:
        """Embed one text column in one forward pass, in the format of a `SentenceTransformer`."""
        mask = features.get("attention_mask")
        with reaching_heads(model) as reach:
            by_layer = layer_features(model, features, self.layers, backbones, normalize=not self.raw)
        values = [by_layer[num_layers]["sentence_embedding"] for num_layers in self.layers]
        for term in self.observers:
            seen = term.observe({layer: _tokens(by_layer[layer], mask) for layer in term.layers_observed()})
            if seen.shape != (len(values[0]), term.observes):
                raise UsageError(
                    f"{type(term).__name__}.observe must return {term.observes} numbers for each of {len(values[0])} texts, "
                    f"got {tuple(seen.shape)}."
                )
            values.append(seen)
        return {"sentence_embedding": reach(torch.cat(values, dim=1))}

    def split(self, column: Column) -> tuple[dict[int, Column], dict[Term, Column]]:
        """Split rows into embeddings of each layer, (texts, D), and numbers of each term, (texts, term.observes)."""
        seen = [term.observes for term in self.observers]
        width = (column.shape[1] - sum(seen)) // len(self.layers)
        values = column.split([width] * len(self.layers) + seen, dim=1)
        at = len(self.layers)
        return dict(zip(self.layers, values[:at], strict=True)), dict(zip(self.observers, values[at:], strict=True))

    def finish(self, model: nn.Module, embedding: Tensor) -> Tensor:
        """Return the embedding as the pipeline does."""
        if not self.raw:
            return embedding
        features = {"sentence_embedding": embedding}
        for module in Pipeline.of(unwrap(model)).trailing_normalize():
            features = module(features)
        return features["sentence_embedding"]


def _tokens(features: Mapping[str, Any], mask: Tensor | None) -> Tokens:
    states, pooled = features["token_embeddings"], features["sentence_embedding"]
    if mask is None or mask.shape != states.shape[:2]:
        mask_shape = None if mask is None else tuple(mask.shape)
        raise UsageError(
            f"Token states of shape {tuple(states.shape)} need an attention mask of shape {tuple(states.shape[:2])}, "
            f"got {mask_shape}. Batches without padding have none: set `model[0].unpad_inputs = False`."
        )
    return Tokens(states, mask.bool(), pooled)


@dataclass
class CachedStep(CachedLossMixin):
    """One training step with sentence-transformers' gradient cache, several layers side by side.

    The cache holds the `Representation` of each text. Each step is a new object, because the
    backward pass embeds again, perhaps after the loss has drawn the sizes of the next step. Texts
    are sorted, longest first: mini-batches need little padding, and short texts reuse the memory
    that long ones freed.
    """

    model: nn.Module
    embed: Callable[[dict[str, Any]], dict[str, Column]]
    score: Callable[[list[Tensor], Tensor | None], dict[str, Tensor]]
    parameters: Collection[nn.Parameter]
    mini_batch_size: int
    mini_batch_num_tokens: int | None
    steps: Sequence[Tensor] = ()

    def parts(self, columns: list[dict[str, Any]], labels: Tensor | None) -> dict[str, Tensor]:
        """Return named parts that sum to the loss; the first one carries the gradient of all."""
        ordered = [self._longest_first(column) for column in columns]
        self.places = [places for _, places in ordered]
        total = self.forward_cached([column for column, _ in ordered], labels)
        if total.requires_grad:
            total.register_hook(self._average_embedded)
        first, *others = self.values
        rest = torch.stack([self.values[name] for name in others]).sum() if others else 0
        # Zero, but with the gradients of the loss's own parameters, so that the backward pass adds
        # and scales them.
        steps = sum((step - step.detach() for step in self.steps), start=total.new_zeros(()))
        return {first: total - rest + steps, **{name: self.values[name] for name in others}}

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Compute the loss from cached embeddings, and their gradients if `with_backward`."""
        texts = [torch.cat(column)[places] for column, places in zip(reps, self.places, strict=True)]
        parts = self.score(texts, labels)
        total = torch.stack(list(parts.values())).sum()
        if with_backward:
            cached = [values for column in reps for values in column]
            gradients = torch.autograd.grad(total, [*cached, *self.parameters], allow_unused=True)
            for values, gradient in zip(cached, gradients, strict=False):
                values.grad = gradient
            own = zip(self.parameters, gradients[len(cached) :], strict=True)
            averaged = [(parameter, average_gradient(value)) for parameter, value in own if value is not None]
            self.steps = [(parameter * value).sum() for parameter, value in averaged]
        self.values = {name: value.detach() for name, value in parts.items()}
        return total.detach()

    def embed_minibatch(self, *args: Any, **kwargs: Any) -> tuple[Tensor, RandContext | None]:
        """Embed some texts at every layer of the step, as sentence-transformers embeds them at one."""
        return embed_mini_batch(self.embed, *args, **kwargs)

    def _average_embedded(self, _: Tensor) -> None:
        """Average the gradients of the second embedding over processes: once, as their mini-batches may differ."""
        for parameter in self.parameters:
            # earlier gradients are equal in all processes, so they stay
            if parameter.grad is not None:
                parameter.grad = average_gradient(parameter.grad)

    def _longest_first(self, column: dict[str, Any]) -> tuple[dict[str, Any], Tensor | slice]:
        """Sort a column by length; also return the new place of each text."""
        mask = column.get("attention_mask")
        at_once = 1 if self.mini_batch_num_tokens else self.mini_batch_size
        if not isinstance(mask, Tensor) or mask.ndim != 2 or len(mask) <= at_once:
            return column, slice(None)
        order = mask.sum(dim=1).argsort(descending=True, stable=True)
        rows = {name for name, value in column.items() if isinstance(value, Tensor) and value.shape[:1] == mask.shape[:1]}
        return {name: value[order] if name in rows else value for name, value in column.items()}, order.argsort()
