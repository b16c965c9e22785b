"""Ways to reduce dims: each is fitted on a sample of embeddings and maps embeddings to `dim` dims."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["WIDTHS"]

Rows = NDArray[np.floating]
Narrow = Callable[[Rows], Rows]
_POWERS = (0.25, 0.5, 0.75)


def first(sample: Rows, dim: int) -> Narrow:
    """Keep the first coordinates."""
    return lambda rows: rows[:, :dim]


def drawn(seed: int) -> Callable[[Rows, int], Narrow]:
    """Keep random coordinates (Takeshita et al., 2025)."""
    return lambda sample, dim: _columns(np.random.default_rng(seed).permutation(sample.shape[1])[:dim])


def window(sample: Rows, dim: int) -> Narrow:
    """Keep the last coordinates."""
    return lambda rows: rows[:, -dim:]


def variance(sample: Rows, dim: int) -> Narrow:
    """Keep the coordinates with the largest variance."""
    return _columns(np.argsort(-sample.var(0))[:dim])


def components(power: float) -> Callable[[Rows, int], Narrow]:
    """Project on principal components, divided by their standard deviation to a power (1: whitening)."""

    def fit(sample: Rows, dim: int) -> Narrow:
        mean = sample.mean(0)
        values, vectors = np.linalg.eigh(np.cov(sample - mean, rowvar=False))
        scaled = vectors[:, ::-1][:, :dim] / np.maximum(values[::-1][:dim], 1e-9) ** (power / 2)
        return lambda rows: (rows - mean) @ scaled

    return fit


def turned(sample: Rows, dim: int) -> Narrow:
    """Rotate at random and keep the first coordinates."""
    matrix, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((sample.shape[1],) * 2))
    return lambda rows: rows @ matrix[:, :dim]


def _columns(places: NDArray[np.integer]) -> Narrow:
    return lambda rows: rows[:, places]


WIDTHS: dict[str, Callable[[Rows, int], Narrow]] = {
    "first dims": first,
    "last dims": window,
    **{f"random dims, seed {seed}": drawn(seed) for seed in range(3)},
    "dims of most variance": variance,
    "random rotation": turned,
    "components": components(0),
    **{f"components, tempered by {power}": components(power) for power in _POWERS},
    "components, white": components(1),
}
