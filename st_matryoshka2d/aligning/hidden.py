"""One hidden layer with random weights: features by which a linear map bends."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from st_matryoshka2d.model.readout_files import linear_of

_SHIFT = 0.5  # of the random units, in standard deviations of the inputs
_KIND: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever the user's defaults


class Hidden:
    r"""The features of a text: its embedding, in two halves, and random units.

    .. math:: f(x) = \mathrm{relu}(V x + v), \quad V = [I; -I; W]

    The first two blocks contain x itself, as relu(x - m) - relu(m - x) = x - m, so a map of the features can be any linear
    one. Without units, the features are x.
    """

    def __init__(self, x: Float[Tensor, "texts dim"], units: int) -> None:
        self.mean, self.dim, self.units = x.mean(0), x.shape[1], units
        self.linear: nn.Linear | None = None
        if units:
            draw = torch.Generator().manual_seed(0)
            # All random units together have the variance of the two halves.
            random = torch.randn(units, self.dim, generator=draw, **_KIND) * math.sqrt(2 / units)
            shift = torch.randn(units, generator=draw, **_KIND) * math.sqrt(2 * self.dim / units)
            eye = torch.eye(self.dim, **_KIND)
            weight = torch.cat([eye, -eye, random])
            shifts = torch.cat([torch.zeros(2 * self.dim, **_KIND), _SHIFT * x.std(0).square().mean().sqrt() * shift])
            self.linear = linear_of(weight, shifts - weight @ self.mean).requires_grad_(False)

    @property
    def width(self) -> int:
        """Number of features."""
        return 2 * self.dim + self.units if self.units else self.dim

    def __call__(self, x: Float[Tensor, "texts dim"]) -> Float[Tensor, "texts features"]:
        """Compute the features."""
        return x if self.linear is None else torch.relu(self.linear(x))

    def of_linear(self, weight: Float[Tensor, "out dim"]) -> Float[Tensor, "out features"]:
        """Write a linear map of x, up to a constant, as one of the features."""
        return torch.cat([weight, -weight, weight.new_zeros(len(weight), self.units)], 1) if self.units else weight
