"""Affine maps from one depth to the whole model: ridge regression in closed form, from running sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

_STRENGTHS = [10.0**exponent for exponent in range(-5, 1)]  # ridge strengths to try, in units of the mean variance
_KIND: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}  # of sums, whatever the user's defaults


@dataclass(frozen=True)
class Affine:
    """The map x -> `weight` x + `bias`."""

    weight: Float[Tensor, "out dim"]
    bias: Float[Tensor, " out"]

    def __call__(self, rows: Float[Tensor, "texts dim"]) -> Float[Tensor, "texts out"]:
        """Map rows."""
        return F.linear(rows, self.weight, self.bias)

    def then(self, matrix: Float[Tensor, "out out"]) -> Affine:
        """Multiply by a matrix from the left."""
        return Affine(matrix @ self.weight, matrix @ self.bias)

    def after(self, linear: nn.Linear) -> Affine:
        """Compose: apply `linear` first, then this map."""
        weight, bias = linear.weight.detach().float().cpu(), linear.bias.detach().float().cpu()
        return Affine(self.weight @ weight, self.weight @ bias + self.bias)

    def times(self, factor: float) -> Affine:
        """Scale by a factor."""
        return Affine(factor * self.weight, factor * self.bias)


class Sums:
    """Running sums of pairs of vectors, x of a depth and z of the whole model, from which a regression is computed."""

    def __init__(self, dim: int) -> None:
        self.count = 0
        self.x, self.z = (torch.zeros(dim, **_KIND) for _ in range(2))
        self.xx, self.xz = (torch.zeros(dim, dim, **_KIND) for _ in range(2))

    def add(self, x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts dim"]) -> None:
        """Add pairs."""
        # Float32 is precise enough for the products of a chunk, and twice as fast as float64.
        self.count += len(x)
        self.x += x.sum(0, dtype=torch.float64)
        self.z += z.sum(0, dtype=torch.float64)
        self.xx += (x.T @ x).double()
        self.xz += (x.T @ z).double()

    def __add__(self, other: Sums) -> Sums:
        both = Sums(len(self.x))
        for name in vars(both):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    @property
    def means(self) -> tuple[Tensor, Tensor]:
        """Means of x and of z."""
        return self.x / self.count, self.z / self.count

    @property
    def covariance(self) -> Tensor:
        """Covariance of x."""
        return self.about(self.means)[0]

    def about(self, centre: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean products x x^T and x z^T of the deviations from a centre."""
        (x, z), (mean_x, mean_z) = centre, self.means
        xx = self.xx / self.count - torch.outer(x, mean_x) - torch.outer(mean_x - x, x)
        xz = self.xz / self.count - torch.outer(x, mean_z) - torch.outer(mean_x - x, z)
        return xx, xz


def fit_readout(fitted: Sums, held_out: Sums) -> Affine:
    """Ridge regression in closed form; choose the strength on held-out texts, then fit on all texts."""
    both = fitted + held_out
    strength = _best_strength(fitted, held_out) if held_out.count and fitted.count > 1 else _STRENGTHS[-2]
    covariance, with_z = both.about(both.means)
    values, basis = torch.linalg.eigh(covariance)
    slope = basis @ ((basis.T @ with_z) * _factors(values, strength).unsqueeze(1))
    x, z = both.means
    return Affine(slope.T.float().contiguous(), (z - x @ slope).float())


def _best_strength(fitted: Sums, held_out: Sums) -> float:
    """Return the strength with the least error on held-out texts, from one decomposition for all strengths."""
    covariance, with_z = fitted.about(fitted.means)
    values, basis = torch.linalg.eigh(covariance)
    turned = basis.T @ with_z
    unseen, unseen_with_z = held_out.about(fitted.means)
    # With slopes basis @ diag(f) @ turned, the error is a constant + f Q f - 2 q f.
    square = (basis.T @ unseen @ basis) * (turned @ turned.T)
    line = (turned * (basis.T @ unseen_with_z)).sum(1)
    factors = {strength: _factors(values, strength) for strength in _STRENGTHS}
    errors = {strength: float(f @ square @ f - 2 * line @ f) for strength, f in factors.items()}
    return min(errors, key=errors.__getitem__)


def _factors(variances: Tensor, strength: float) -> Tensor:
    """Return the factors of a ridge regression along each direction."""
    variances = variances.clamp(min=0)  # rounding may make a variance of 0 negative
    return 1 / (variances + strength * (float(variances.mean()) or 1.0))
