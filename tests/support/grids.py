"""Random grids and latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from st_matryoshka2d import GridResult
from st_matryoshka2d.sizes import Size

BITS = {"float32": 32, "int8": 8, "binary": 1}


def random_grid(
    seed: int,
    layers: Sequence[int] = (1, 2, 4),
    dims: Sequence[int] = (8, 20, 64),
    precisions: Sequence[str] = ("float32",),
    tasks: Sequence[str] = ("A", "B"),
    decimals: int = 3,
) -> GridResult:
    """Return a grid of random scores; few decimals make ties. Each task has two splits and a secondary metric."""
    generator = np.random.default_rng(seed)
    columns = ["task", "split", "subset", "num_layers", "dim", "precision", "metric", "score", "is_main"]
    rows = [
        (*cell[:2], "default", *cell[2:5], metric, round(float(generator.uniform(0.2, 0.9)), decimals), metric == "spearman")
        for cell in product(tasks, ("dev", "test"), layers, dims, precisions)
        for metric in ("pearson", "spearman")
    ]
    return GridResult(pd.DataFrame(rows, columns=columns))


def random_times(seed: int, layers: Sequence[int] = (1, 2, 4)) -> pd.DataFrame:
    """Return random latencies with measurement noise."""
    generator = np.random.default_rng(seed)
    milliseconds = [round(depth * 0.5 + float(generator.uniform(0, 0.8)), 1) for depth in layers]
    return pd.DataFrame(
        {
            "num_layers": list(layers),
            "milliseconds": [time * 32 for time in milliseconds],
            "milliseconds_per_text": milliseconds,
            "parameters": [1000 + 100 * depth for depth in layers],
            "megabytes": [4e-6 * (1000 + 100 * depth) for depth in layers],
        }
    )


def timed(seed: int, decimals: int = 1, **options: Any) -> GridResult:
    return random_grid(seed, decimals=decimals, **options).with_latency(random_times(seed))


def with_scores(grid: GridResult, change: Any) -> GridResult:
    frame = grid.to_frame()
    return GridResult(frame.assign(score=change(frame)), latency=grid.latency)


def pairs_grid(noise: Mapping[str, float], n: int, seed: int = 0, tasks: Sequence[str] = ("A",)) -> GridResult:
    """Return a grid of Spearman correlations with its similarities of n pairs; the noise of each size lowers its score."""
    parts = []
    for number, task in enumerate(tasks):
        gold, shared, own = np.random.default_rng([seed, number]).normal(size=(3, n))
        parts += [(task, size, gold + 0.3 * shared + noise[size] * own, gold) for size in noise]
    return _of_pairs(parts, full_size=max(noise, key=Size.parse))


SIZES = ("2L-32d", "2L-64d", "4L-64d")


def model_grid(model: str, noises: Mapping[str, float], seed: int, sizes: Sequence[str] = SIZES) -> GridResult:
    """Return a model's grid on 300 pairs of each task; models share gold scores and errors, and have noise of their own."""
    parts = []
    for task, noise in noises.items():
        gold, shared = np.random.default_rng(ord(task)).normal(size=(2, 300))
        for size in sizes:
            own = np.random.default_rng([seed, *map(ord, size)]).normal(size=300)
            parts.append((task, size, gold + 0.5 * shared + noise * own, gold))
    return _of_pairs(parts, model=model)


def _of_pairs(parts: Sequence[tuple[str, str, Any, Any]], **about: str) -> GridResult:
    rows, items = [], []
    for task, name, values, gold in parts:
        size = Size.parse(name)
        place = {"task": task, "split": "test", "subset": "default", "num_layers": size.num_layers, "dim": size.dim}
        score = float(spearmanr(values, gold).statistic)
        rows.append(place | {"metric": "cosine_spearman", "score": score, "is_main": True})
        items.append(place | {"ids": [f"pair {index}" for index in range(len(gold))], "values": values, "gold": gold})
    return GridResult(pd.DataFrame(rows), pd.DataFrame(items), **about)


def curve() -> GridResult:
    """Return a grid with scores 0.4 .. 0.8 that rise with layers and dims, two precisions, and round latencies."""
    scores = {
        (n, d): 0.8 - 0.1 * (2 - i) - 0.1 * (2 - j) for i, n in enumerate((1, 2, 4)) for j, d in enumerate((8, 20, 64))
    }
    grid = random_grid(0, precisions=("float32", "int8"), tasks=("A",))
    by_size = [scores[size] for size in zip(grid.frame["num_layers"], grid.frame["dim"], strict=True)]
    grid = with_scores(grid, lambda frame: np.array(by_size) - 0.04 * (frame["precision"] == "int8"))
    return grid.with_latency(random_times(0).assign(milliseconds_per_text=[0.5, 0.9, 1.75]))
