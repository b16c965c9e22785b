"""Shared code of the loss tests."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from tests.support.families import TEXTS, cut_by_hand
from tests.support.oracles import Columns

BATCHES = {1: [TEXTS], 2: [TEXTS, TEXTS[::-1]], 3: [TEXTS, TEXTS[1:] + TEXTS[:1], [f"old {text}" for text in TEXTS]]}


def batch(model: SentenceTransformer, columns: int) -> list[dict[str, Any]]:
    return [model.preprocess(texts) for texts in BATCHES[columns]]


def seed_draws(loss: Any, number: int) -> None:
    """Seed torch's generator, and that from which a loss draws sizes."""
    torch.manual_seed(number)
    sampler = getattr(loss, "sampler", None)
    if sampler is not None and sampler.generator is not None:
        sampler.generator.manual_seed(number)


def physical_columns(model: SentenceTransformer, columns: int) -> Columns:
    """Return embeddings of every layer, each from a separate forward pass through a physically cut model, with gradients."""
    by_layer: Columns = {}
    for num_layers in range(1, model.config.num_hidden_layers + 1):
        with cut_by_hand(model, num_layers):
            by_layer[num_layers] = [
                model[1](model[0](dict(features)))["sentence_embedding"] for features in batch(model, columns)
            ]
    return by_layer


class SumOfSquares(nn.Module):
    """A wrapped loss for any number of text columns, without a similarity function; it depends on lengths."""

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None) -> Tensor:
        return torch.stack([column.square().sum() for column in embeddings]).sum()


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradient of every parameter and clear the model's. Fails if all gradients are zero."""
    model.zero_grad()
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    assert any(bool(gradient.any()) for gradient in found.values()), "no gradient at all: the comparison would prove nothing"
    return found


def total(parts: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(parts.values())).sum()


def assert_gradients_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    for name in ours.keys() | theirs.keys():
        left, right = ours.get(name), theirs.get(name)
        zero = torch.zeros(())
        difference = float(((zero if left is None else left) - (zero if right is None else right)).abs().max())
        assert difference <= tolerance, f"{name}: {difference:.1e}"


def exact(model: SentenceTransformer) -> SentenceTransformer:
    """Put the model in training mode and double precision, so that rounding hides no error; two passes must agree."""
    model.double().train()
    features = batch(model, 1)[0]
    first = model(dict(features))["sentence_embedding"]
    assert torch.equal(first, model(dict(features))["sentence_embedding"]), "dropout is on"
    return model
