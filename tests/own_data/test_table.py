"""Questionable own data is reported when the task is built; tables of any kind are read alike."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset

from st_matryoshka2d import DataWarning, classification_task, retrieval_task, sts_task
from tests.support.own_data import CORPUS, LISTS, LISTS_TEST, PAIRS, QRELS, QUERIES, TEST, TRAIN, table

HOLDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dict": dict,
    "frame": lambda columns: pd.DataFrame(columns, dtype=object),
    "frame of pyarrow": lambda columns: pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype),
    "data set": Dataset.from_dict,
    "dict of pyarrow": lambda columns: {name: pa.array(cells) for name, cells in columns.items()},
    "dict of chunked pyarrow": lambda columns: {name: pa.chunked_array([cells]) for name, cells in columns.items()},
    "dict of numpy": lambda columns: {name: np.array(cells) for name, cells in columns.items()},
}


@pytest.mark.parametrize("hold", HOLDERS)
def test_decimals_of_a_database_are_numbers_in_any_table(hold: str) -> None:
    given = {**PAIRS, "score": [Decimal("1"), Decimal("2.5"), Decimal("4")]}
    task = sts_task(HOLDERS[hold](given))
    assert task.dataset is not None
    assert task.dataset["test"].to_dict() == {**PAIRS, "score": [1.0, 2.5, 4.0]}


@pytest.mark.parametrize(
    ("make", "remark"),
    [
        (
            lambda: sts_task({"sentence1": list("aabc"), "sentence2": list("xxyz"), "score": [1, 2, 3, 4]}),
            "Pairs that are repeated with different scores: 1. They are left out.",
        ),
        (
            lambda: sts_task({"sentence1": list("abbb"), "sentence2": list("xyyy"), "score": [1, 3, 3, 3]}),
            "Rows that repeat a pair and its score: 2. Each pair counts once.",
        ),
        (
            lambda: retrieval_task({**CORPUS, "d4": " ", "d5": {"text": "", "title": "T"}}, QUERIES, QRELS),
            "Documents in corpus without text and title: 1. They are kept.",
        ),
        (
            lambda: retrieval_task(CORPUS, {**QUERIES, "q3": "third"}, {**QRELS, "q2": {"d1": 0}}),
            "Queries without a relevant document: 2 of 3. They are dropped.",
        ),
        (
            lambda: sts_task(pd.DataFrame({**PAIRS, "score": [1, None, 4]}, index=[2, 3, 5])),
            "pairs: 1 of 3 rows have an empty cell and are left out: 3.",
        ),
        (
            lambda: classification_task(TRAIN, {**TEST, "text": ["one", "train 3"]}),
            "Texts of test that are also in train: 1 of 2. They make the scores too high.",
        ),
        (
            lambda: classification_task({**TRAIN, "label": ["a"] * 17 + ["b"] * 3}, TEST),
            "Labels with fewer than samples_per_label=8 texts in train: 1 (the rarest, 'b', has 3). All of their texts "
            "are used.",
        ),
        (
            lambda: classification_task(TRAIN, {**TEST, "label": ["b", "b"]}),
            "All texts of test have the label 'b', so the score says nothing about the other labels.",
        ),
    ],
)
def test_warnings_about_data(make: Any, remark: str) -> None:
    with pytest.warns(DataWarning) as found:
        make()
    assert [str(warning.message) for warning in found] == [remark]
    assert found[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_no_warning_for_valid_data() -> None:
    task = sts_task(
        {"sentence1": ["a", "a", "b"], "sentence2": ["x", "z", "y"], "score": np.array([1, 1, 3], dtype=np.float32)}
    )
    assert len(task.dataset["test"]) == 3  # type: ignore[index]
    retrieval_task(CORPUS, QUERIES, QRELS)
    retrieval_task({1: "a"}, table("_id text", (7, "x")), {7: {1: np.int64(2)}})
    classification_task({**TRAIN, "label": [True, False] * 10}, {**TEST, "label": [False, True]})
    classification_task(LISTS, LISTS_TEST)


def test_copies_of_a_relevant_document_are_relevant() -> None:
    """Also if the title stands in the text of one; the highest relevance counts."""
    copies = {"d4": "T two", "d5": "three", "d6": {"title": "T", "text": "two "}, "d7": "two"}
    with pytest.warns(DataWarning, match=r"^Documents in corpus that repeat a relevant one: 2\. They count as relevant too"):
        task = retrieval_task({**CORPUS, **copies}, QUERIES, {"q1": ["d1"], "q2": {"d2": 2, "d4": 1, "d5": 0}})
    judged = task.dataset["default"]["test"]["relevant_docs"]
    assert judged == {"q1": {"d1": 1}, "q2": {"d2": 2, "d4": 2, "d6": 2, "d5": 0}}


def test_excludes_queries_without_relevant_document() -> None:
    with pytest.warns(UserWarning, match="2 of 4"):
        task = retrieval_task(CORPUS, {**QUERIES, "q3": "third", "q4": "fourth"}, {**QRELS, "q1": {"d1": 0}, "q3": ["d3"]})
    split = task.dataset["default"]["test"]
    assert split["queries"]["id"] == ["q2", "q3"]
    assert split["relevant_docs"] == {"q2": {"d2": 2, "d1": 0}, "q3": {"d3": 1}}
