"""Shared code of the loss tests."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from tests.support.families import TEXTS
from tests.support.oracles import Columns

BATCHES = {
    1: [TEXTS],
    2: [TEXTS, TEXTS[::-1]],
    3: [TEXTS, TEXTS[1:] + TEXTS[:1], [f"old {text}" for text in TEXTS]],
}


def batch(model: SentenceTransformer, columns: int) -> list[dict[str, Any]]:
    return [model.preprocess(texts) for texts in BATCHES[columns]]


def seed_draws(loss: Any, number: int) -> None:
    """Seed torch's generator, and that from which a loss draws sizes."""
    torch.manual_seed(number)
    sampler = getattr(loss, "sampler", None)
    if sampler is not None and sampler.generator is not None:
        sampler.generator.manual_seed(number)


def physical_columns(model: SentenceTransformer, columns: int) -> Columns:
    """Return embeddings of every layer, each from a separate forward pass through the blocks, with gradients."""
    bert, pooling = model[0].model, model[1]
    by_layer: Columns = {}
    for num_layers in range(1, len(bert.encoder.layer) + 1):
        by_layer[num_layers] = []
        for features in batch(model, columns):
            mask = features["attention_mask"]
            hidden = bert.embeddings(input_ids=features["input_ids"])
            for block in bert.encoder.layer[:num_layers]:
                hidden = block(
                    hidden, attention_mask=(1 - mask[:, None, None, :]).to(hidden.dtype) * torch.finfo(hidden.dtype).min
                )
                hidden = hidden[0] if isinstance(hidden, tuple) else hidden
            pooled = pooling({"token_embeddings": hidden, "attention_mask": mask})
            by_layer[num_layers].append(pooled["sentence_embedding"])
    return by_layer


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
