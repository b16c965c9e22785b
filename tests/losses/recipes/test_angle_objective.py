"""The sum of three losses that docs/training_measured.md shows for 2DMSE, compared with the equations."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor

from st_matryoshka2d.losses import MultiSizeLoss, TwoDMSELoss
from tests import ROOT
from tests.support import oracles
from tests.support.losses import batch, exact, physical_columns, total

LABELS = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0])


@pytest.fixture
def shown(tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the block of the page, which also trains; return its names."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "training_measured.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (block,) = (block for block in blocks if "class AnglEObjective" in block)
    names: dict[str, Any] = {
        "model": tiny,
        "Dataset": Dataset,
        "SentenceTransformerTrainer": SentenceTransformerTrainer,
        "MultipleNegativesRankingLoss": MultipleNegativesRankingLoss,
        "TwoDMSELoss": TwoDMSELoss,
    }
    before = tiny[0].model.embeddings.word_embeddings.weight.clone()
    exec(compile(block, "training_measured.md", "exec"), names)
    assert not torch.equal(tiny[0].model.embeddings.word_embeddings.weight, before)
    return names


def angle(a: Tensor, b: Tensor) -> Tensor:
    """The authors' angle: halves of a vector are real and imaginary parts, and a b* / (|a| |b|) is summed up."""
    half = len(a) // 2
    x, y = torch.complex(a[:half], a[half:]), torch.complex(b[:half], b[half:])
    turned = x * y.conj() / (a.norm() * b.norm())
    return (turned.real.sum() + turned.imag.sum()).abs()


def ordered(columns: list[Tensor], similarity: Any) -> Tensor:
    """log(1 + sum of exp(20 (s_i - s_j)) over all i, j with label_i < label_j)."""
    scores = [20 * similarity(left, right) for left, right in zip(*columns, strict=True)]
    wrong = [(scores[i] - scores[j]).exp() for i in range(5) for j in range(5) if LABELS[i] < LABELS[j]]
    return torch.log(1 + torch.stack(wrong).sum())


def in_batch(columns: list[Tensor]) -> Tensor:
    """InfoNCE of the pairs with label 1, against the right text of every pair."""
    left, right = columns
    losses = []
    for row in (0, 2):
        scores = torch.stack([20 * oracles.cosine(left[row], other) for other in right])
        losses.append(scores.exp().sum().log() - scores[row])
    return torch.stack(losses).mean()


def test_sum_of_three_losses_matches_equations(shown: dict[str, Any]) -> None:
    model = exact(shown["model"])
    loss = MultiSizeLoss(model, shown["AnglEObjective"](model), ["2L-8d", "4L-32d"])
    parts = loss(batch(model, 2), LABELS)
    by_layer = physical_columns(model, 2)
    sizes = [oracles.at(by_layer, 2, 8), oracles.at(by_layer, 4, 32)]
    expected = {
        "task_cosine": [ordered(columns, oracles.cosine) for columns in sizes],
        "task_in_batch": [in_batch(columns) for columns in sizes],
        "task_angle": [ordered(columns, angle) for columns in sizes],
    }
    assert list(parts) == list(expected)
    for name, values in expected.items():
        assert parts[name].item() == pytest.approx(torch.stack(values).mean().item(), rel=1e-6), name


def test_batch_without_similar_pairs_has_no_in_batch_term(shown: dict[str, Any]) -> None:
    model = shown["model"].train()
    for mini_batch_size in (None, 2):
        loss = TwoDMSELoss(model, shown["AnglEObjective"](model), mini_batch_size=mini_batch_size)
        parts = loss(batch(model, 2), torch.tensor([0.0, 0.2, 0.4, 0.3, 0.1]))
        assert list(parts) == ["task_cosine", "task_in_batch", "task_angle", "kl"]
        assert parts["task_in_batch"].item() == 0
        assert math.isfinite(total(parts).item())
        parts.backward()
