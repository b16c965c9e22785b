"""Grids whose reports the tests read."""

from __future__ import annotations

import pandas as pd
import pytest

from st_matryoshka2d import GridResult
from tests.support.grids import pairs_grid

_NOISE = {(1, 16): 2.4, (1, 64): 1.9, (1, 128): 1.7, (2, 16): 1.6, (2, 64): 1.0, (2, 128): 0.92}
_NOISE |= {(4, 16): 1.3, (4, 64): 0.84, (4, 128): 0.8}


def of_pairs(quieter: float = 1.0) -> GridResult:
    noise = {f"{layers}L-{dim}d": value * quieter for (layers, dim), value in _NOISE.items()}
    times = {"num_layers": [1, 2, 4], "milliseconds_per_text": [1.25, 2.118, 3.96], "parameters": [1_100, 2_200, 4_400]}
    times["megabytes"] = [30.0, 50.0, 90.0]
    return pairs_grid(noise, n=150, tasks=("A", "B")).with_latency(pd.DataFrame(times))


@pytest.fixture(scope="session")
def grid() -> GridResult:
    """Two tasks, nine sizes, with intervals and times."""
    return of_pairs().named("org/model")


@pytest.fixture(scope="session")
def trained() -> GridResult:
    """The same sizes with better scores."""
    return of_pairs(0.7).named("trained")
