"""Samplers of the sizes that a step trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from sentence_transformers.util import is_dist_initialized
from torch import distributed

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.losses.checks import finite_weights, one_of
from st_matryoshka2d.sizes import Size, all_within, as_size, sizes_product, validate_sizes


class SizeSampler(ABC):
    """Choose the sizes to train in each step.

    Evaluation does not draw: its loss is the mean over `every_draw`, so equal weights give equal
    numbers.

    Attributes:
        candidates: Every size that can be drawn.
        generator: Random draws come from it, not from torch's global one, which a data loader also
            uses: so evaluation changes no draw. `LossStateCallback` saves and restores it. None if
            nothing is random.
    """

    candidates: list[Size]
    generator: torch.Generator | None = None

    @abstractmethod
    def draw(self) -> dict[Size, float]:
        """Return the sizes of the next step, with the weight of the wrapped loss at each."""

    def every_draw(self) -> list[dict[Size, float]]:
        """Return the draws that evaluation takes the mean of; by default each candidate alone, with weight 1."""
        return [{size: 1.0} for size in self.candidates]

    @abstractmethod
    def get_config_dict(self) -> dict[str, object]:
        """Settings for the model card."""


class FixedSizes(SizeSampler):
    r"""The same sizes in every step, averaged (Starbucks, Eq. 4) or summed (MRL: MIPIC, Eq. 1).

    .. math::
        \frac{1}{|S|} \sum_{(n,d) \in S} w_{n,d}\, loss(v_n^d) \quad or \quad
        \sum_{(n,d) \in S} w_{n,d}\, loss(v_n^d)

    Args:
        sizes: S, as `Size` or as text such as `"6L-128d"`.
        full: Size of the whole model.
        weights: One weight per size; None for 1 each.
        reduction: `"mean"` divides the sum by the number of sizes, `"sum"` does not.
    """

    def __init__(
        self,
        sizes: Sequence[Size | str],
        full: Size | str,
        weights: Sequence[float] | None = None,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> None:
        self.candidates = validate_sizes(sizes, as_size(full, "full"))
        self.weights = finite_weights(weights, len(self.candidates), "size_weights")
        self.reduction = one_of(reduction, "reduction", ("mean", "sum"))

    def draw(self) -> dict[Size, float]:
        """Return all sizes."""
        share = 1 / len(self.candidates) if self.reduction == "mean" else 1.0
        return {size: weight * share for size, weight in zip(self.candidates, self.weights, strict=True)}

    def every_draw(self) -> list[dict[Size, float]]:
        """Return all sizes, once."""
        return [self.draw()]

    def get_config_dict(self) -> dict[str, object]:
        """Return sizes, weights and reduction."""
        sizes = [str(size) for size in self.candidates]
        return {"sizes": sizes, "size_weights": self.weights, "size_reduction": self.reduction}


class UniformSizes(SizeSampler):
    r"""Draw one shallower layer n and one smaller dim d per step (2DMSE, Eq. 2-5).

    :math:`n \sim U\{1..N-1\}`, d uniform over `dims`; the step trains (N, D), (n, D), (N, d) and
    (n, d). Draws come from a generator of its own, seeded by torch's global one; rank 0 draws for
    all processes. Evaluation takes the mean over every n and d.

    Args:
        full: Size of the whole model, (N, D).
        dims: Dims to draw from, each below D.
        weights: Weights of (N, D), (n, D), (N, d), (n, d), in the order of Eq. 2-5.
    """

    def __init__(self, full: Size | str, dims: Sequence[int], weights: Sequence[float] = (1, 1, 1, 1)) -> None:
        full = as_size(full, "full")
        if full.num_layers < 2:
            raise UsageError(f"2DMSE draws a layer below the last one, but the model has only {full.num_layers}.")
        if isinstance(dims, Sequence) and not dims:
            raise UsageError(f"2DMSE draws a dim below the full {full.dim}, but dims is empty. Pass dims=[...].")
        self.dims = all_within(dims, full.dim, "dim")
        if full.dim in self.dims:
            raise UsageError(f"dim={full.dim} is not below the full {full.dim}, which is always trained.")
        self.full = full
        self.weights = finite_weights(weights, 4, "weights")
        self.candidates = sizes_product(range(1, full.num_layers + 1), [*self.dims, full.dim])
        self.generator: torch.Generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))

    def draw(self) -> dict[Size, float]:
        """Draw n and d; return the four sizes."""
        num_layers = int(torch.randint(1, self.full.num_layers, (), generator=self.generator))
        dim = self.dims[int(torch.randint(len(self.dims), (), generator=self.generator))]
        drawn = [num_layers, dim]
        if is_dist_initialized():
            distributed.broadcast_object_list(drawn, src=0)
        return self._step(*drawn)

    def every_draw(self) -> list[dict[Size, float]]:
        """Return the four sizes of every n and d."""
        return [self._step(num_layers, dim) for num_layers in range(1, self.full.num_layers) for dim in self.dims]

    def get_config_dict(self) -> dict[str, object]:
        """Return dims and weights."""
        return {"dims": self.dims, "weights": self.weights}

    def _step(self, num_layers: int, dim: int) -> dict[Size, float]:
        sizes = [self.full, Size(num_layers, self.full.dim), Size(self.full.num_layers, dim), Size(num_layers, dim)]
        return dict(zip(sizes, self.weights, strict=True))


def averaged(draws: Sequence[Mapping[Size, float]]) -> tuple[dict[Size, float], dict[Size, float]]:
    """Return the mean weight of each size over the draws, and the share of the draws that have the size."""
    weights: dict[Size, float] = {}
    shares: dict[Size, float] = {}
    for size, weight in (item for draw in draws for item in draw.items()):
        weights[size] = weights.get(size, 0.0) + weight / len(draws)
        shares[size] = shares.get(size, 0.0) + 1 / len(draws)
    return weights, shares


def sampler_of(sizes: Sequence[Size | str] | SizeSampler, full: Size, weights: Sequence[float] | None) -> SizeSampler:
    """Return a sampler, or one of a list of sizes."""
    if not isinstance(sizes, SizeSampler):
        return FixedSizes(sizes, full, weights)
    if weights is not None:
        raise UsageError("size_weights needs a list of sizes; a sampler has its own weights.")
    validate_sizes(sizes.candidates, full)
    return sizes
