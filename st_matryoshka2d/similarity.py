"""How far apart two tables of similarities are: in a loss, and where a readout is refined."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def kl_divergence(student: Float[Tensor, "batch n"], teacher: Float[Tensor, "batch n"], temperature: float) -> Tensor:
    r"""Return the KL divergence of two softmaxes, :math:`\sum t (\log t - \log s)`, mean over rows."""
    log_student = F.log_softmax(student / temperature, dim=-1)
    log_teacher = F.log_softmax(teacher.detach() / temperature, dim=-1)
    return F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision, which loses divergences of close distributions."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
