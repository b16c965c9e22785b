"""Gradient caching: the gradients of a large batch in the memory of a mini-batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from sentence_transformers.base.losses import CachedLossMixin, RandContext
from sentence_transformers.base.losses.gradcache import _create_minibatch, _get_batch_size
from torch import Tensor, nn

from st_matryoshka2d.losses.distributed import average_gradient


@dataclass
class CachedStep(CachedLossMixin):
    """One training step with sentence-transformers' gradient cache, several layers side by side.

    What is cached of a text is its `Representation`. Each step is an object of its own, because the backward pass embeds
    again, perhaps after the loss has already drawn the sizes of the next step. The longest texts are embedded first: side
    by side they need little padding, and what they leave in memory the shorter ones fit into.
    """

    model: nn.Module
    mini_batch_size: int
    mini_batch_num_tokens: int | None
    embed: Callable[[dict[str, Any]], Float[Tensor, "texts values"]]
    score: Callable[[list[Tensor], Tensor | None], dict[str, Tensor]]
    parameters: Collection[nn.Parameter]
    steps: Sequence[Tensor] = ()

    def parts(self, columns: list[dict[str, Any]], labels: Tensor | None) -> dict[str, Tensor]:
        """Named parts that sum to the loss; the first of them carries the gradient of all."""
        ordered = [self._longest_first(column) for column in columns]
        self.places = [places for _, places in ordered]
        total = self.forward_cached([column for column, _ in ordered], labels)
        if total.requires_grad:
            total.register_hook(self._average_embedded)
        first, *others = self.values
        rest = torch.stack([self.values[name] for name in others]).sum() if others else 0
        # Zero, with the gradients of the loss's own parameters: so they come when the backward pass does, and scaled by it.
        steps = sum((step - step.detach() for step in self.steps), start=total.new_zeros(()))
        return {first: total - rest + steps, **{name: self.values[name] for name in others}}

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss from cached embeddings; back-propagates into them when asked to."""
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

    def embed_minibatch(
        self,
        sentence_feature: dict[str, Any],
        begin: int,
        end: int,
        with_grad: bool,
        copy_random_state: bool,
        random_state: RandContext | None = None,
    ) -> tuple[Tensor, RandContext | None]:
        """Embed the texts from `begin` to `end` at every layer of the step."""
        texts = _create_minibatch(sentence_feature, begin, end)
        with random_state or nullcontext(), nullcontext() if with_grad else torch.no_grad():
            snapshot = RandContext(*texts.values()) if copy_random_state else None
            return self.embed(texts), snapshot

    def _average_embedded(self, _: Tensor) -> None:
        """Average what the second embedding adds to gradients: once, as processes may differ in their mini-batches."""
        for parameter in self.parameters:
            if parameter.grad is not None:  # what it held before is the same in all processes, and stays
                parameter.grad = average_gradient(parameter.grad)

    def _longest_first(self, column: dict[str, Any]) -> tuple[dict[str, Any], Tensor]:
        """A column sorted by length, and the new place of each text."""
        mask = column.get("attention_mask")
        at_once = 1 if self.mini_batch_num_tokens else self.mini_batch_size
        if not isinstance(mask, Tensor) or mask.ndim != 2 or len(mask) <= at_once:
            return column, torch.arange(_get_batch_size(column))
        order = mask.sum(dim=1).argsort(descending=True, stable=True)
        rows = {name for name, value in column.items() if isinstance(value, Tensor) and value.shape[:1] == mask.shape[:1]}
        return {name: value[order] if name in rows else value for name, value in column.items()}, order.argsort()
