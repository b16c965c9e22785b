"""The rows of funnels: means over splits, subsets and tasks, and what is kept."""

from __future__ import annotations

import numpy as np
import pandas as pd

__all__ = ["COLUMNS", "KEYS", "mean_over_tasks", "with_kept"]

_FUNNEL = ["first", "second", "k1", "k", "first_bytes", "second_bytes"]
_MEASURED = [
    *("recall_at_k1", "ndcg", "recall", "ndcg_alone", "recall_alone"),
    *("first_multiply_adds", "second_multiply_adds", "alone_multiply_adds"),
]

# What tells rows apart, and all there is in a row.
KEYS = ["task", "split", "subset", "first", "second", "k1"]
COLUMNS = [*KEYS, "k", "first_bytes", "second_bytes", "queries", "documents", *_MEASURED]


def mean_over_tasks(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean over tasks of the mean over a task's splits and subsets, for each funnel.

    Args:
        rows: Columns `COLUMNS`.

    Returns:
        One row for each funnel, without what belongs to a task alone.
    """
    by_task = rows.groupby(["task", *_FUNNEL], sort=False)[_MEASURED].mean()
    return by_task.groupby(level=_FUNNEL, sort=False).mean().reset_index()


def with_kept(rows: pd.DataFrame) -> pd.DataFrame:
    """With what a funnel keeps of a search with the second size alone; NaN where there is nothing to keep.

    Args:
        rows: Of single tasks or means.
    """
    kept = {f"{name}_kept": rows[name] / rows[f"{name}_alone"].replace(0, np.nan) for name in ("ndcg", "recall")}
    return rows.assign(**kept)
