"""Espresso compared with its equations, written as loops: values and all gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from st_matryoshka2d.losses import EspressoLoss
from tests.support.losses import assert_gradients_close, gradients, total
from tests.support.oracles import Columns, distribution, kl
from tests.support.quick import quick
from tests.support.tokens import (
    HALVES,
    Case,
    assert_close_in_half_precision,
    assert_not_zero,
    assert_parts_close,
    embeddings,
    features,
    physical_tokens,
)


def pca_target(embedding: Tensor, k: int) -> Tensor:
    """E U_k S_k of the row-wise softmax(E^T E / sqrt(D)), without gradient."""
    embedding = embedding.detach()
    width = embedding.shape[1]
    rows = []
    for scores in embedding.T @ embedding / math.sqrt(width):
        weights = (scores - scores.max()).exp()  # avoids overflow
        rows.append(weights / weights.sum())
    u, s, _ = torch.linalg.svd(torch.stack(rows))
    columns = []
    for j in range(k):
        direction = u[:, j]
        if float(direction[int(direction.abs().argmax())]) < 0:
            direction = -direction
        columns.append(embedding @ direction * s[j])
    return torch.stack(columns, dim=1)


def compression(columns: list[Tensor], k: int) -> Tensor:
    """c of one layer: mean over columns of mean squared error plus divergence over coordinates."""
    value = torch.zeros(())
    for embedding in columns:
        student, target = embedding[:, :k], pca_target(embedding, k)
        error = (student - target).square().mean()
        divergences = [
            kl(distribution(list(s), 1.0), distribution(list(t), 1.0)) for s, t in zip(student, target, strict=True)
        ]
        value = value + error + sum(divergences, torch.zeros(())) / len(divergences)
    return value / len(columns)


def espresso(raw: Columns, final: Columns, k: int, task_loss: Callable[[list[Tensor]], Tensor]) -> tuple[Tensor, Tensor]:
    """(task, compress); `raw` are the embeddings before Normalize, `final` the pipeline's, layers counted from 1."""
    last = max(raw)
    task = task_loss(final[last]) + task_loss([column[:, :k] for column in final[last]])
    compress = compression(raw[last], k)
    for i in range(1, last):
        weight = 1 / (1 + math.log(i)) / (last - 1)
        task = task + weight * task_loss([column[:, :k] for column in final[i]])
        compress = compress + weight * compression(raw[i], k)
    return task, compress


CASES = {
    "one column": Case(columns=1),
    "one column, Normalize": Case(columns=1, normalize=True),
    "two columns": Case(),
    "three columns": Case(columns=3),
    "first and last layers": Case(layers=None),
    "CLS": Case(pooling="cls"),
    "Normalize": Case(normalize=True),
    "pre-norm": Case(family="modernbert", pooling="cls"),
    "pre-norm, last token, padded on the left": Case(
        family="qwen3", pooling="lasttoken", padding_side="left", normalize=True
    ),
    "Dense and Normalize": Case(columns=3, pooling=("cls", "mean"), dense=24, normalize=True),
    "given dim": Case(arguments={"compress_dim": 20}),
    "one dim": Case(arguments={"compress_dim": 1}),
    "given weight": Case(arguments={"compress_weight": 0.3}),
    "only the task": Case(arguments={"compress_weight": 0.0}),
    "gradient caching": Case(columns=3, normalize=True, arguments={"mini_batch_size": 2}),
}


def build(case: Case, folder: Path, dtype: torch.dtype = torch.float64) -> tuple[EspressoLoss, Any]:
    model = case.model(folder).to(dtype)
    wrapped, task = case.wrapped(model)
    return EspressoLoss(model, wrapped, layers=case.layers, **case.arguments), task


def expected(loss: EspressoLoss, case: Case, task: Any, batch: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    tokens = physical_tokens(loss.model, batch, case.layers)
    raw, final = (embeddings(loss.model, tokens, normalize) for normalize in (False, True))
    dim = case.arguments.get("compress_dim", (case.dense or 32) // 4)
    of_task, compress = espresso(raw, final, dim, task)
    return {"task": of_task, "compress": case.arguments.get("compress_weight", 1.0) * compress}


REPEATED = {"one column, Normalize", "two columns", "Normalize", "pre-norm", "one dim", "only the task"}


@pytest.mark.parametrize("name", quick(CASES, *(CASES.keys() - REPEATED)))
def test_espresso_matches_equations(name: str, tmp_path: Path) -> None:
    """Scales the loss by three, like a Trainer: a gradient computed too early would miss the factor."""
    case = CASES[name]
    loss, task = build(case, tmp_path)
    batch = features(loss.model, case.columns)
    wanted = expected(loss, case, task, batch)
    if name != "only the task":
        assert_not_zero(wanted)
    parts = loss([dict(column) for column in batch], None)
    assert_parts_close(parts, wanted, rel=1e-5, abs=1e-5)
    assert_gradients_close(gradients(loss, 3 * total(parts)), gradients(loss, 3 * total(wanted)), case.tolerance)


def test_compression_gradient(tmp_path: Path) -> None:
    """In the sum, a large part could hide an error in a small part."""
    case = CASES["three columns"]
    loss, task = build(case, tmp_path)
    batch = features(loss.model, case.columns)
    theirs = gradients(loss, expected(loss, case, task, batch)["compress"])
    ours = gradients(loss, loss([dict(column) for column in batch], None)["compress"])
    assert_gradients_close(ours, theirs, case.tolerance)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", quick(["one column", "two columns", "Normalize", "pre-norm"], "two columns"))
def test_half_precision(name: str, half: str, tmp_path: Path) -> None:
    case = CASES[name]
    loss, task = build(case, tmp_path, HALVES[half].weights)
    batch = features(loss.model, case.columns)
    wanted = expected(copy.deepcopy(loss).double(), case, task, batch)
    assert_close_in_half_precision(half, loss, batch, wanted)
