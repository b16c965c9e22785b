"""Small tables of a user: pairs, a search, and labelled texts."""

from __future__ import annotations

from typing import Any

import pandas as pd

PAIRS: dict[str, Any] = {"sentence1": ["a", "b", "c"], "sentence2": ["x", "y", "z"], "score": [1, 2.5, 4]}
CORPUS: dict[Any, Any] = {"d1": "one", "d2": {"title": "T", "text": "two"}, "d3": "three"}
QUERIES: dict[Any, Any] = {"q1": "first", "q2": "second"}
QRELS: dict[Any, Any] = {"q1": ["d1"], "q2": {"d2": 2, "d1": 0}}
TRAIN: dict[str, Any] = {"text": [f"train {i}" for i in range(20)], "label": ["a", "b"] * 10}
TEST: dict[str, Any] = {"text": ["one", "two"], "label": ["a", "b"]}
LISTS: dict[str, Any] = {**TRAIN, "label": [["a"], ["a", "b"], ["b"], []] * 5}
LISTS_TEST: dict[str, Any] = {**TEST, "label": [["a", "b"], []]}


def table(columns: str, *rows: tuple[Any, ...]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=columns.split())
