"""What is kept of a text in one step: its embedding at each layer, then what the terms saw of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from sentence_transformers.base.losses.merged_forward import merge_feature_batches
from torch import Tensor, nn

from st_matryoshka2d.backbone import Backbone
from st_matryoshka2d.layers import layer_features, trailing_normalize, unwrap
from st_matryoshka2d.losses.distributed import reaching_heads
from st_matryoshka2d.losses.step import Term, Tokens

Column = Float[Tensor, "texts values"]


@dataclass(frozen=True)
class Representation:
    """How the numbers of a text lie side by side: one row per text, so that all of them can be cached as embeddings are.

    Attributes:
        layers: Depths whose embeddings come first, in this order.
        observers: Terms whose numbers follow, in this order.
        raw: Whether the embeddings are those before `Normalize`, which is then applied to what is read.
    """

    layers: Sequence[int]
    observers: Sequence[Term]
    raw: bool

    def embed(self, model: nn.Module, features: dict[str, Any], backbones: Mapping[str, Backbone]) -> Column:
        """One text column, from one forward pass."""
        mask = features.get("attention_mask")
        with reaching_heads(model) as reach:
            by_layer = layer_features(model, features, self.layers, backbones, normalize=not self.raw)
        values = [by_layer[num_layers]["sentence_embedding"] for num_layers in self.layers]
        for term in self.observers:
            seen = term.observe({layer: _tokens(by_layer[layer], mask) for layer in term.layers_observed()})
            if seen.shape != (len(values[0]), term.observes):
                raise ValueError(
                    f"{type(term).__name__}.observe must return {term.observes} numbers for each of {len(values[0])} texts, "
                    f"got {tuple(seen.shape)}."
                )
            values.append(seen)
        return reach(torch.cat(values, dim=1))

    def split(self, column: Column) -> tuple[dict[int, Column], dict[Term, Column]]:
        """The embedding at each layer, (texts, D), and what each term observed, (texts, term.observes)."""
        seen = [term.observes for term in self.observers]
        width = (column.shape[1] - sum(seen)) // len(self.layers)
        values = column.split([width] * len(self.layers) + seen, dim=1)
        at = len(self.layers)
        return dict(zip(self.layers, values[:at], strict=True)), dict(zip(self.observers, values[at:], strict=True))

    def finish(self, model: nn.Module, embedding: Tensor) -> Tensor:
        """The embedding as the pipeline returns it."""
        if not self.raw:
            return embedding
        features = {"sentence_embedding": embedding}
        for module in trailing_normalize(unwrap(model)):
            features = module(features)
        return features["sentence_embedding"]


def embed_alike(columns: list[dict[str, Any]], embed: Callable[[dict[str, Any]], Column]) -> list[Column]:
    """Columns of like width, such as a positive and its negatives, share one forward pass, as in sentence-transformers."""
    first, *others = columns
    embedded = [embed(first)]
    merged = merge_feature_batches(others) if len(others) > 1 else None
    if merged is None:
        return embedded + [embed(column) for column in others]
    return embedded + list(embed(merged).chunk(len(others)))


def _tokens(features: Mapping[str, Any], mask: Tensor | None) -> Tokens:
    states, pooled = features["token_embeddings"], features["sentence_embedding"]
    if mask is None or mask.shape != states.shape[:2]:
        found = None if mask is None else tuple(mask.shape)
        raise ValueError(
            f"Token states of shape {tuple(states.shape)} need an attention mask of shape {tuple(states.shape[:2])}, "
            f"got {found}. Batches without padding have none: set `model[0].unpad_inputs = False`."
        )
    return Tokens(states, mask.bool(), pooled)
