"""Equations 1 and 4 to 18 of MIPIC as slow loops over plain tensors, sharing no code with the package."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from tests.support.oracles import cosine, dot


def log_softmax(scores: list[Tensor]) -> list[Tensor]:
    largest = max((score.detach() for score in scores), key=float)  # subtracted to avoid overflow
    total = sum(((score - largest).exp() for score in scores), torch.zeros(()))
    return [score - largest - total.log() for score in scores]


def unpadded(states: Tensor, mask: Tensor) -> list[Tensor]:
    return [state for state, kept in zip(states, mask, strict=True) if int(kept) == 1]


def teacher_attention(tokens: list[Tensor], query: Tensor, tau_a: float) -> list[Tensor]:
    """Eq. 4 in log space."""
    width = len(query)
    return log_softmax([dot(query.detach(), token.detach()) / math.sqrt(width) / tau_a for token in tokens])


def student_attention(tokens: list[Tensor], query: Tensor, projection: Tensor, tau_a: float) -> list[Tensor]:
    """Eq. 5 in log space: every token is projected up to the width of the query, as printed."""
    dim, width = projection.shape
    lifted = [projection.T @ token[:dim] for token in tokens]
    return log_softmax([dot(query.detach(), token) / math.sqrt(width) / tau_a for token in lifted])


def sia_attention(states: Tensor, mask: Tensor, query: Tensor, P: dict[int, Tensor], tau_a: float) -> Tensor:  # noqa: N803
    """Eq. 6, student first, summed over dims; mean over sentences."""
    total = torch.zeros(())
    for sentence, kept, q in zip(states, mask, query, strict=True):
        tokens = unpadded(sentence, kept)
        log_teacher = teacher_attention(tokens, q, tau_a)
        for dim, projection in P.items():
            assert projection.shape == (dim, len(q))
            log_student = student_attention(tokens, q, projection, tau_a)
            for s, t in zip(log_student, log_teacher, strict=True):
                total = total + s.exp() * (s - t)
    return total / len(states)


def top_k(gamma: float, length: int) -> int:
    """Section A.5, with gamma as an exact decimal fraction, which a binary float such as 0.55 only approximates."""
    return min(length, max(8, math.ceil(Fraction(str(round(gamma, 9))) * length)))


def centred(tokens: Tensor) -> Tensor:
    """Eq. 8, over tokens (the rows), so that Eq. 9 equals the HSIC of Eq. 2."""
    count = len(tokens)
    return (torch.eye(count, dtype=tokens.dtype) - torch.ones(count, count, dtype=tokens.dtype) / count) @ tokens


def is_constant(tokens: Tensor) -> bool:
    """Whether the rows differ only by rounding, so that their CKA would measure noise."""
    tokens = tokens.detach()
    return float(centred(tokens).norm()) <= 1e-7 * float(tokens.norm())


def frobenius(covariance: Tensor) -> Tensor:
    return covariance.square().sum().sqrt()


def cka_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Eq. 8 to 12 with explicit covariances, d x D, of k x d and k x D token states."""
    if is_constant(student) or is_constant(teacher):
        return torch.zeros(())
    h, H = centred(student), centred(teacher)  # noqa: N806
    return 1 - frobenius(h.T @ H) ** 2 / (frobenius(h.T @ h) * frobenius(H.T @ H))


def sia_cka(
    states: Tensor, mask: Tensor, query: Tensor, dims: Sequence[int], gammas: Sequence[float], tau_a: float
) -> Tensor:
    """Eq. 7 to 12 on the tokens that the teacher attends to most, summed over dims; mean over sentences."""
    total = torch.zeros(())
    for sentence, kept, q in zip(states, mask, query, strict=True):
        tokens = unpadded(sentence, kept)
        attention = teacher_attention(tokens, q, tau_a)
        by_importance = sorted(range(len(tokens)), key=lambda j: -float(attention[j]))
        for dim, gamma in zip(dims, gammas, strict=True):
            chosen = by_importance[: top_k(gamma, len(tokens))]
            student = torch.stack([tokens[j][:dim] for j in chosen])
            teacher = torch.stack([tokens[j].detach() for j in chosen])
            total = total + cka_loss(student, teacher)
    return total / len(states)


def projector(parameters: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """phi of Eq. 16: Linear, exact GELU, Linear."""
    first, first_bias, second, second_bias = parameters

    def phi(z: Tensor) -> Tensor:
        inner = first @ z + first_bias
        return second @ (inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))) + second_bias

    return phi


def pic(z: list[Tensor], phi: Sequence[Any], tau: float, detach_target: bool = False) -> Tensor:
    """Eq. 16 and 17 for one text column: z holds, per checkpoint, (batch, d_i)."""
    total = torch.zeros(())
    for step in range(len(z) - 1):
        sources = [phi[step](row) for row in z[step]]
        targets = [row.detach() if detach_target else row for row in z[step + 1]]
        for row, source in enumerate(sources):
            scores = [cosine(source, target) / tau for target in targets]
            total = total - log_softmax(scores)[row] / len(sources)
    return total


def mrl(columns: list[Tensor], dims: Sequence[int], task_loss: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """Eq. 1 on the last layer's embeddings."""
    return sum((task_loss([column[:, :dim] for column in columns]) for dim in dims), torch.zeros(()))
