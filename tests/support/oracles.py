"""The papers' equations as slow loops over plain tensors, sharing no code with the package."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Embeddings by layer, then by text column: layer -> column -> (batch, D).
Columns = dict[int, list[Tensor]]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.norm() * b.norm())


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()


def mnrl(columns: list[Tensor], similarity=cosine, scale: float = 20.0) -> Tensor:  # type: ignore[no-untyped-def]
    """InfoNCE of the first column against all texts of the others; the positive is the same row of the second column."""
    anchors, candidates = columns[0], [text for column in columns[1:] for text in column]
    total = anchors.new_zeros(())
    for row, anchor in enumerate(anchors):
        scores = [scale * similarity(anchor, candidate) for candidate in candidates]
        total = total - scores[row] + torch.stack(scores).exp().sum().log()
    return total / len(anchors)


def cosent(columns: list[Tensor], labels: Tensor, scale: float = 20.0) -> Tensor:
    """log(1 + sum of exp(s_i - s_j) over all i, j with label_i < label_j), where s are scaled cosines."""
    scores = [scale * cosine(left, right) for left, right in zip(*columns, strict=True)]
    wrong = [
        (scores[i] - scores[j]).exp()
        for i in range(len(scores))
        for j in range(len(scores))
        if float(labels[i]) < float(labels[j])
    ]
    return torch.log(1 + torch.stack(wrong).sum())


def distribution(row: list[Tensor], temperature: float) -> list[Tensor]:
    weights = [(value / temperature).exp() for value in row]
    return [weight / sum(weights) for weight in weights]


def kl(student: list[Tensor], teacher: list[Tensor]) -> Tensor:
    """sum t (log t - log s)"""
    return sum((t * (t.log() - s.log()) for s, t in zip(student, teacher, strict=True)), torch.zeros(()))


def score_rows(columns: list[Tensor], similarity) -> list[list[Tensor]]:  # type: ignore[no-untyped-def]
    if len(columns) == 1:
        texts = list(columns[0])
        return [[similarity(a, b) for j, b in enumerate(texts) if j != i] for i, a in enumerate(texts)]
    candidates = [text for column in columns[1:] for text in column]
    return [[similarity(anchor, candidate) for candidate in candidates] for anchor in columns[0]]


def kl_over_scores(student: list[Tensor], teacher: list[Tensor], temperature: float, similarity=cosine) -> Tensor:  # type: ignore[no-untyped-def]
    rows = zip(score_rows(student, similarity), score_rows([t.detach() for t in teacher], similarity), strict=True)
    divergences = [kl(distribution(s, temperature), distribution(t, temperature)) for s, t in rows]
    return sum(divergences, torch.zeros(())) / len(divergences)


def kl_over_coordinates(student: list[Tensor], teacher: list[Tensor], temperature: float) -> Tensor:
    divergences = []
    for small, large in zip(student, teacher, strict=True):
        for s, t in zip(small, large.detach(), strict=True):
            divergences.append(kl(distribution(list(s), temperature), distribution(list(t[: len(s)]), temperature)))
    return temperature * sum(divergences, torch.zeros(())) / len(divergences)


def at(columns: Columns, num_layers: int, dim: int) -> list[Tensor]:
    return [column[:, :dim] for column in columns[num_layers]]


def starbucks(columns: Columns, sizes, loss, divergence, weights=None, kl_weight: float = 1.0) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """Eq. 4 and Eq. 5; the full size is the teacher, and its own term is zero."""
    weights = weights or [1.0] * len(sizes)
    full = (max(columns), columns[max(columns)][0].shape[1])
    task = sum(w * loss(at(columns, n, d)) for w, (n, d) in zip(weights, sizes, strict=True)) / len(sizes)
    align = sum(divergence(at(columns, n, d), at(columns, *full)) for n, d in sizes) / len(sizes)
    return task, kl_weight * align


def two_dmse(columns: Columns, n: int, d: int, loss, divergence, weights) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """Eq. 2 to 7 for a drawn layer n and a drawn dim d."""
    last, width = max(columns), columns[max(columns)][0].shape[1]
    l1, l2, l3, l4, l5 = weights
    task = l1 * loss(at(columns, last, width)) + l2 * loss(at(columns, n, width))
    task = task + l3 * loss(at(columns, last, d)) + l4 * loss(at(columns, n, d))
    align = divergence(at(columns, n, width), at(columns, last, width)) + divergence(at(columns, n, d), at(columns, last, d))
    return task, l5 * align


def is_finite(value: Tensor) -> bool:
    return math.isfinite(value.item())
