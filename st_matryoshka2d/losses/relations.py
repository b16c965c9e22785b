"""How the tokens of a text relate to each other, in whole states and in prefixes of them (MIPIC, Eq. 4-12)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

__all__ = ["attention_divergence", "centred", "cka_loss", "tokens_kept"]

# A text whose states vary by less than this share of their size is one of equal tokens, up to rounding.
_CONSTANT = 1e-6


def centred(
    states: Float[Tensor, "batch tokens hidden"], mask: Bool[Tensor, "batch tokens"]
) -> tuple[Float[Tensor, "batch tokens hidden"], Float[Tensor, "batch 1 1"]]:
    """Token states less their mean over the text, and how large they were before: the root of their mean square."""
    # Neither attention nor CKA notices a shift of all tokens. But states share a large part, in which the differences that
    # matter would be rounded away.
    with torch.no_grad():
        inside = states * mask.unsqueeze(-1)
        count = mask.sum(dim=1).clamp(min=1).view(-1, 1, 1)
        mean = inside.sum(dim=1, keepdim=True) / count
        size = (inside.square().sum(dim=(1, 2), keepdim=True) / (count * states.shape[-1])).sqrt()
    return states - mean, size.clamp(min=torch.finfo(states.dtype).tiny)


def attention_divergence(
    states: Float[Tensor, "batch tokens hidden"],
    mask: Bool[Tensor, "batch tokens"],
    query: Float[Tensor, "batch hidden"],
    projections: Sequence[Float[Tensor, "dim hidden"]],
    temperature: float,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch tokens"]]:
    """How far the attention that prefixes pay to the tokens is from that of the whole states (Eq. 4-6)."""
    # Sum over prefixes i and tokens j of a_i^j (log a_i^j - log a_D^j). Eq. 5 up-projects every token, h_cls . P_i^T
    # h_j[:d_i]. Projecting the query instead is the same sum in another order, for a fraction of the work: (P_i h_cls) .
    # h_j[:d_i].
    scale = math.sqrt(states.shape[-1]) * temperature
    teacher = (states.detach() @ query.unsqueeze(-1)).squeeze(-1) / scale
    widest = max(len(projection) for projection in projections)
    queries = [F.pad(query @ p.to(query.dtype).T, (0, widest - len(p))) for p in projections]
    student = torch.stack(queries, dim=1) @ states[..., :widest].transpose(1, 2) / scale
    padding = ~mask.unsqueeze(1)
    floor = torch.finfo(states.dtype).min
    log_student = student.masked_fill(padding, floor).log_softmax(dim=-1)
    log_teacher = teacher.masked_fill(~mask, floor).log_softmax(dim=-1).unsqueeze(1)
    difference = (log_student - log_teacher).masked_fill(padding, 0.0)
    return (log_student.exp() * difference).sum(dim=(1, 2)), teacher.masked_fill(~mask, floor)


def tokens_kept(lengths: Sequence[int], gammas: Sequence[float]) -> list[list[int]]:
    r"""How many tokens each prefix keeps of each text, :math:`k_i = \min(m, \max(8, \lceil \gamma_i m \rceil))` (A.5)."""
    # 0.56 x 25 is 14, but a little more than that in binary.
    return [[min(length, max(8, math.ceil(round(gamma * length, 9)))) for length in lengths] for gamma in gammas]


def cka_loss(
    states: Float[Tensor, "batch tokens hidden"],
    size: Float[Tensor, "batch 1 1"],
    scores: Float[Tensor, "batch tokens"],
    dims: Sequence[int],
    kept: Sequence[Sequence[int]],
) -> Float[Tensor, " batch"]:
    """How far the geometry of the most attended tokens in prefixes is from that in the whole states (Eq. 7-12)."""
    # Sum over prefixes i of 1 - <K_i, K_D> / (|K_i| |K_D|), with K the Gram matrices of the kept tokens, centred over them.
    # This equals Eq. 11, whose covariances are D x D, for matrices of k x k. The Gram matrix of a prefix is that of the
    # prefix before it plus what the new coordinates add. Texts of one token, or of equal ones, have no loss.
    counts = torch.tensor(kept, device=states.device)
    most = max(max(row) for row in kept)
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :most]
    chosen = states.gather(1, order.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
    is_kept = torch.arange(most, device=states.device) < counts.unsqueeze(-1)  # (prefixes, batch, most)
    chosen = chosen * (is_kept[-1].unsqueeze(-1) / size)
    blocks = chosen.tensor_split(list(dims[:-1]), dim=-1)
    grams = torch.stack([block @ block.transpose(1, 2) for block in blocks]).cumsum(dim=0)
    student, teacher = _centred_gram(grams[:-1], is_kept), _centred_gram(grams[-1:].detach(), is_kept)
    student_square, teacher_square = student.square().sum(dim=(2, 3)), teacher.square().sum(dim=(2, 3))
    rounding = torch.tensor(dims[:-1], device=states.device).unsqueeze(-1) * counts * _CONSTANT**2
    has_geometry = torch.minimum(student_square, teacher_square) > rounding.square()
    norm = torch.where(has_geometry, student_square, 1.0).sqrt() * torch.where(has_geometry, teacher_square, 1.0).sqrt()
    cka = (student * teacher).sum(dim=(2, 3)) / norm
    return torch.where(has_geometry, 1 - cka, 0.0).sum(dim=0)


def _centred_gram(
    gram: Float[Tensor, "#prefixes batch kept kept"], kept: Bool[Tensor, "prefixes batch kept"]
) -> Float[Tensor, "prefixes batch kept kept"]:
    """Gram matrices of what is left when each prefix drops tokens and subtracts the mean of the others (Eq. 8)."""
    weights = kept.to(gram.dtype)
    share = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1)
    rows = gram @ share.unsqueeze(-1)
    mean = share.unsqueeze(-2) @ rows
    return (gram - rows - rows.transpose(2, 3) + mean) * (weights.unsqueeze(-1) * weights.unsqueeze(-2))
