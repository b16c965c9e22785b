"""Ridge regression from sums, towards no change, with the strength that is best on texts left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float

_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # to try, in units of the mean square of the inputs


class Sums:
    r"""The sums :math:`\sum z z^T` and :math:`\sum z m^T` of a regression, of the same size for any rows."""

    def __init__(self, wide: int, narrow: int) -> None:
        self.gram = torch.zeros(wide, wide, dtype=torch.float64, device="cpu")
        self.cross = torch.zeros(wide, narrow, dtype=torch.float64, device="cpu")

    def add(self, z: Float[Tensor, "rows wide"], missing: Float[Tensor, "rows narrow"]) -> None:
        """Add rows."""
        # Float32 is precise enough for the products of a batch, and twice as fast as float64.
        self.gram += (z.T @ z).cpu()
        self.cross += (z.T @ missing).cpu()

    def gain(self, change: Float[Tensor, "wide narrow"]) -> float:
        """Return by how much a change lowers the squared error of these rows."""
        return float((change * (2 * self.cross - self.gram @ change)).sum())


def best_change(seen: Sums, held: Sums, *, has_bias: bool) -> Float[Tensor, "wide narrow"]:
    r"""Return what to add to a linear map; nothing if no strength helps the rows that were left out.

    .. math:: \operatorname{argmin}_C \sum |m - C^T z|^2 + \lambda |C|^2

    The last row of C is the bias, which is free.
    """
    penalty = torch.ones(len(seen.gram), dtype=torch.float64)
    inputs = seen.gram.diagonal()[:-1] if has_bias else seen.gram.diagonal()
    penalty *= inputs.mean()
    if has_bias:
        penalty[-1] = 0
    best, most = torch.zeros_like(seen.cross), 0.0
    for strength in _STRENGTHS:
        change = torch.linalg.solve(seen.gram + torch.diag(strength * penalty), seen.cross)
        if (gain := held.gain(change)) > most:
            best, most = change, gain
    return best
