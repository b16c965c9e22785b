"""One rotation for all depths, and the damping of coordinates that a depth predicts badly."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from st_matryoshka2d.aligning.ridge import Affine

_MIXED = 5  # the first D / 5 directions are mixed at random
_DAMPING = 0.3  # exponent by which badly predicted coordinates are scaled down


def shared_rotation(spread: Float[Tensor, "dim dim"]) -> Float[Tensor, "dim dim"]:
    """Return the rotation for all depths, after which the first coordinates carry most."""
    # Directions are sorted by how much of them shallow layers predict. The first fifth is then mixed at random, because in
    # sorted order the first few coordinates encode the topics of the fitted texts, and are poor for other texts.
    _, vectors = torch.linalg.eigh(spread)
    ordered = vectors.flip(1).T
    ordered = ordered * ordered.sum(1, keepdim=True).sign()  # fix the arbitrary signs of eigenvectors
    mixed = max(1, len(spread) // _MIXED)
    draw = torch.Generator().manual_seed(0)
    mix, _ = torch.linalg.qr(torch.randn(mixed, mixed, generator=draw, dtype=spread.dtype, device=draw.device))
    return torch.cat([mix @ ordered[:mixed], ordered[mixed:]])


def damped(readout: Affine, spread: Float[Tensor, "dim dim"], of_whole: Float[Tensor, " dim"]) -> Affine:
    """Scale down the coordinates that a depth predicts badly, because they add noise."""
    predicted = ((readout.weight.double() @ spread) * readout.weight.double()).sum(1) / of_whole.clamp(min=1e-12)
    known = predicted[: max(1, len(predicted) // _MIXED)].mean()
    factors = (predicted / known.clamp(min=1e-12)).clamp(1e-6, 1) ** _DAMPING
    return readout.then(factors.float().diag())
