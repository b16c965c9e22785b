"""Ways to fewer dims: each is fitted on embeddings of a sample of texts, and maps embeddings to so many dims."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["WIDTHS"]

Rows = NDArray[np.floating]
Narrow = Callable[[Rows], Rows]
_POWERS = (0.25, 0.5, 0.75)


def first(sample: Rows, dim: int) -> Narrow:
    """The first coordinates."""
    return lambda rows: rows[:, :dim]


def drawn(seed: int) -> Callable[[Rows, int], Narrow]:
    """Random coordinates (Takeshita et al., 2025)."""
    return lambda sample, dim: _columns(np.random.default_rng(seed).permutation(sample.shape[1])[:dim])


def window(sample: Rows, dim: int) -> Narrow:
    """The last coordinates."""
    return lambda rows: rows[:, -dim:]


def variance(sample: Rows, dim: int) -> Narrow:
    """The coordinates that vary most."""
    return _columns(np.argsort(-sample.var(0))[:dim])


def components(power: float) -> Callable[[Rows, int], Narrow]:
    """Principal components, each divided by its standard deviation to a power: 0 for none, 1 for whitening."""

    def fit(sample: Rows, dim: int) -> Narrow:
        mean = sample.mean(0)
        values, vectors = np.linalg.eigh(np.cov(sample - mean, rowvar=False))
        scaled = vectors[:, ::-1][:, :dim] / np.maximum(values[::-1][:dim], 1e-9) ** (power / 2)
        return lambda rows: (rows - mean) @ scaled

    return fit


def turned(sample: Rows, dim: int) -> Narrow:
    """A random rotation, then the first coordinates."""
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
