"""Sums over texts, from which maps into another space are computed without keeping features."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from st_matryoshka2d.aligning.hidden import Hidden

_CHUNK = 4096  # texts whose features are in memory at once


@dataclass(frozen=True)
class Sums:
    """Sums over texts with embeddings x, features f and embeddings z in the other space, in float64."""

    count: Float[Tensor, ""]
    x: Float[Tensor, " dim"]
    f: Float[Tensor, " features"]
    z: Float[Tensor, " out"]
    xx: Float[Tensor, ""]  # squares
    xz: Float[Tensor, "dim out"]
    ff: Float[Tensor, "features features"]
    fz: Float[Tensor, "features out"]

    @classmethod
    def of(cls, x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts out"], hidden: Hidden) -> Sums:
        """Sum over texts."""
        none = cls._of(x[:0], z[:0], hidden)
        return sum((cls._of(*rows, hidden) for rows in zip(x.split(_CHUNK), z.split(_CHUNK), strict=True)), start=none)

    @classmethod
    def _of(cls, x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts out"], hidden: Hidden) -> Sums:
        f, count = hidden(x), torch.tensor(float(len(x)))
        # Float32 is precise enough for the products of a chunk, and twice as fast as float64.
        parts = (count, x.sum(0), f.sum(0), z.sum(0), x.square().sum(), x.T @ z, f.T @ f, f.T @ z)
        return cls(*(part.double() for part in parts))

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __sub__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, each.name) - getattr(other, each.name) for each in fields(self)))
