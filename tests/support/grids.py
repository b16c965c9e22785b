"""Grids with random scores at every size, and times for them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from st_matryoshka2d import GridResult

BITS = {"float32": 32, "int8": 8, "binary": 1}


def random_grid(
    seed: int,
    layers: Sequence[int] = (1, 2, 4),
    dims: Sequence[int] = (8, 20, 64),
    precisions: Sequence[str] = ("float32",),
    tasks: Sequence[str] = ("A", "B"),
    decimals: int = 3,
) -> GridResult:
    """Random scores; few decimals make ties. Each task has two splits, and a metric beside the main one."""
    generator = np.random.default_rng(seed)
    columns = ["task", "split", "subset", "num_layers", "dim", "precision", "metric", "score", "is_main"]
    rows = [
        (*cell[:2], "default", *cell[2:5], metric, round(float(generator.uniform(0.2, 0.9)), decimals), metric == "spearman")
        for cell in product(tasks, ("dev", "test"), layers, dims, precisions)
        for metric in ("pearson", "spearman")
    ]
    return GridResult(pd.DataFrame(rows, columns=columns))


def random_times(seed: int, layers: Sequence[int] = (1, 2, 4)) -> pd.DataFrame:
    """What a stopwatch that is not exact might show."""
    generator = np.random.default_rng(seed)
    milliseconds = [round(depth * 0.5 + float(generator.uniform(0, 0.8)), 1) for depth in layers]
    return pd.DataFrame(
        {
            "num_layers": list(layers),
            "milliseconds": [time * 32 for time in milliseconds],
            "milliseconds_per_text": milliseconds,
            "parameters": [1000 + 100 * depth for depth in layers],
        }
    )


def timed(seed: int, decimals: int = 1, **options: Any) -> GridResult:
    return random_grid(seed, decimals=decimals, **options).with_latency(random_times(seed))


def with_scores(grid: GridResult, change: Any) -> GridResult:
    frame = grid.to_frame()
    return GridResult(frame.assign(score=change(frame)), latency=grid.latency)
