"""Intervals of shares: draw examples again and again, the same for all sizes, and compute the scores anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from st_matryoshka2d.grid.grid_tables import Items
from st_matryoshka2d.grid.items import uses_ranks

DRAWS = 1000
_AT_ONCE = 3_000_000  # examples times draws in memory, for each of a few arrays


def resampled_scores(models: Sequence[Items], metric: str, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the scores of several models, shape (models, draws), on the same resamples of their common examples."""
    n = len(models[0].ids)
    steps = range(0, DRAWS, max(1, _AT_ONCE // n))
    blocks = [_scores(models, metric, _drawn(n, min(DRAWS, first + steps.step) - first, rng)) for first in steps]
    return np.concatenate(blocks, axis=1)


def _drawn(n: int, draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Count how often each of n examples is in each resample of n; shape (n, draws)."""
    places = rng.integers(n, size=(n, draws)) * draws + np.arange(draws)
    return np.bincount(places.ravel(), minlength=n * draws).reshape(n, draws).astype(float)


def _scores(models: Sequence[Items], metric: str, counts: NDArray[np.float64]) -> NDArray[np.float64]:
    gold = models[0].gold
    if gold is None:
        return np.stack([one.values for one in models]) @ counts / len(counts)
    ranks = uses_ranks(metric)
    truth = _centred(gold, counts, ranks=ranks)
    weighted = counts * truth
    spread = np.sqrt((weighted * truth).sum(axis=0))
    found = []
    for one in models:
        values = _centred(one.values, counts, ranks=ranks)
        with np.errstate(invalid="ignore"):  # a constant has no correlation: NaN
            found.append((weighted * values).sum(axis=0) / (spread * np.sqrt((counts * values * values).sum(axis=0))))
    return np.array(found)


def _centred(values: NDArray[np.float64], counts: NDArray[np.float64], *, ranks: bool) -> NDArray[np.float64]:
    """Return what a correlation correlates, minus its mean, for each example and resample."""
    if not ranks:
        return values[:, None] - values @ counts / len(counts)
    group = np.unique(values, return_inverse=True)[1]
    order = np.argsort(group, kind="stable")
    last = np.flatnonzero(np.diff(group[order], append=group.max() + 1))  # of equal values
    through = np.cumsum(counts[order], axis=0)[last]
    half = np.diff(through, axis=0, prepend=0) / 2
    return (through - half - len(values) / 2)[group]
