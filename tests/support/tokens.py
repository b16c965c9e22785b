"""Shared code of the token-level loss tests: texts longer than a top-k, tiny pipelines, one forward pass per layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor, nn

from tests.support import families, oracles
from tests.support.families import WORDS, cut_by_hand
from tests.support.losses import SumOfSquares, gradients, total

# Layer -> text column -> (token states, mask).
Tokens = dict[int, list[tuple[Tensor, Tensor]]]

# With CLS and SEP 15, 4, 45, 3 and 25 tokens: 0.6 of 45 and of 25 is an integer, but not in single
# precision.
LENGTHS = [13, 2, 43, 1, 23]


def texts(column: int) -> list[str]:
    """Return texts of different lengths; steps of 5 and 7 visit all 22 words before repeating one."""
    shifted = LENGTHS[column:] + LENGTHS[:column]
    return [
        " ".join(WORDS[(3 * row + column + (5 + 2 * (row % 2)) * j) % 22] for j in range(n)) for row, n in enumerate(shifted)
    ]


def features(model: SentenceTransformer, columns: int) -> list[dict[str, Any]]:
    return [model.preprocess(texts(column)) for column in range(columns)]


def by_hand(rows: list[list[int]]) -> dict[str, Tensor]:
    """Return features of token ids without CLS and SEP, padded on the right."""
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([row + [0] * (width - len(row)) for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
    }


@dataclass
class Case:
    """A family, its pipeline and the arguments of a loss."""

    columns: int = 2
    family: str = "bert"
    pooling: str | tuple[str, ...] = "mean"
    dense: int | None = None
    normalize: bool = False
    padding_side: str = "right"
    layers: str | None = "first"  # the papers' setting; None for the default, the first and the last
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def tolerance(self) -> float:
        """Tolerance of gradients; the pre-norm families always compute norms and rotations in single precision."""
        return 1e-6 if self.family == "bert" else 1e-4

    def wrapped(self, model: SentenceTransformer) -> tuple[nn.Module, Callable[[list[Tensor]], Tensor]]:
        """Return the wrapped loss and its oracle."""
        if self.columns == 1:
            return SumOfSquares(), lambda columns: columns[0].square().sum()
        return MultipleNegativesRankingLoss(model), oracles.mnrl

    def model(self, folder: Path) -> SentenceTransformer:
        """Build the model in training mode without dropout, with weights so large that no two layers resemble each other."""
        model = families.pipeline(families.CONFIGS[self.family](), folder, self.pooling, self.dense, self.normalize)
        model.tokenizer.padding_side = self.padding_side
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        families.set_dropout(model, 0.0)
        return model.train()


@dataclass(frozen=True)
class Half:
    """A method of computing in half precision."""

    weights: torch.dtype
    computed: torch.dtype | None = None

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", dtype=self.computed or torch.bfloat16, enabled=self.computed is not None)


HALVES = {
    "bfloat16 weights": Half(torch.bfloat16),
    "bfloat16 autocast": Half(torch.float32, torch.bfloat16),
    "float16 autocast": Half(torch.float32, torch.float16),
}


def physical_tokens(model: SentenceTransformer, batch: list[dict[str, Any]], layers: str | None) -> Tokens:
    """Return token states of every depth, each from a separate forward pass through a physically cut model."""
    states: Tokens = {}
    for num_layers in range(1, model.config.num_hidden_layers + 1):
        with cut_by_hand(model, num_layers, None if layers else families.ENDS[num_layers]):
            outputs = [model[0](dict(column)) for column in batch]
        states[num_layers] = [(out["token_embeddings"], out["attention_mask"]) for out in outputs]
    return states


def embeddings(model: SentenceTransformer, tokens: Tokens, normalize: bool) -> dict[int, list[Tensor]]:
    """Apply the modules after the Transformer, with or without Normalize."""
    by_layer: dict[int, list[Tensor]] = {}
    for num_layers, columns in tokens.items():
        by_layer[num_layers] = []
        for states, mask in columns:
            out = {"token_embeddings": states, "attention_mask": mask}
            for module in list(model.children())[1:]:
                out = out if isinstance(module, Normalize) and not normalize else module(out)
            by_layer[num_layers].append(out["sentence_embedding"])
    return by_layer


def assert_parts_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], **tolerance: float) -> None:
    """Compare the values of parts; a part that the oracle does not have must be zero."""
    assert all(ours[name].item() == 0.0 for name in ours.keys() - theirs.keys()), ours
    for name, value in theirs.items():
        assert ours[name].item() == pytest.approx(value.item(), **tolerance), name


def assert_not_zero(parts: dict[str, Tensor]) -> None:
    assert all(part.item() > 1e-3 for part in parts.values()), "a value of zero would prove nothing"


def assert_close_in_half_precision(
    half: str, loss: nn.Module, batch: list[dict[str, Tensor]], wanted: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return the gradients, which must be finite."""
    with HALVES[half].autocast():
        parts = loss([dict(column) for column in batch], None)
    assert_parts_close(parts, wanted, rel=5e-2)
    found = gradients(loss, total(parts))
    assert all(bool(torch.isfinite(gradient).all()) for gradient in found.values())
    return found
