"""Hand-made scores of prefixes, random subsets, windows and principal components."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from st_matryoshka2d import GridResult, TruncationResult

# (truncation, dim) -> main scores of tasks A and B.
SCORES = {
    ("first", 8): (0.9, 0.7),
    ("first", 4): (0.86, 0.66),
    ("first", 2): (0.60, 0.51),
    ("random-0", 4): (0.80, 0.60),
    ("random-1", 4): (0.82, 0.60),
    ("random-2", 4): (0.81, 0.60),
    ("random-0", 2): (0.50, 0.41),
    ("random-1", 2): (0.66, 0.41),
    ("random-2", 2): (0.70, 0.41),
    ("window-4", 4): (0.70, 0.50),
    ("window-4", 2): (0.30, 0.20),
    ("pca-00c0ffee", 8): (0.92, 0.72),
    ("pca-00c0ffee", 4): (0.88, 0.71),
}


def made_of(scores: Mapping[tuple[str, int], tuple[float, ...]], model: str = "a/model") -> TruncationResult:
    rows = [
        {"task": task, "split": "test", "subset": "default", "num_layers": 3, "dim": dim, "truncation": name}
        | {"metric": metric, "score": score if metric == "ndcg_at_10" else -5.0, "is_main": metric == "ndcg_at_10"}
        for (name, dim), by_task in scores.items()
        for task, score in zip("AB", by_task, strict=False)
        for metric in ("ndcg_at_10", "map")
    ]
    return TruncationResult(GridResult(pd.DataFrame(rows), model=model))
