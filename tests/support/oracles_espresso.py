"""Espresso sentence embeddings as slow loops over plain tensors, sharing no code with the package."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tests.support.oracles import Columns, distribution, kl


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
    total = torch.zeros(())
    for embedding in columns:
        student, target = embedding[:, :k], pca_target(embedding, k)
        error = (student - target).square().mean()
        divergences = [
            kl(distribution(list(s), 1.0), distribution(list(t), 1.0)) for s, t in zip(student, target, strict=True)
        ]
        total = total + error + sum(divergences, torch.zeros(())) / len(divergences)
    return total / len(columns)


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
