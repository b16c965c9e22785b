"""Invalid or questionable own data is reported when the task is built."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDataset, Value

from st_matryoshka2d import DataWarning, classification_task, pair_task, retrieval_task, sts_task
from st_matryoshka2d.evaluation.tasks import chosen_tasks

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


@pytest.mark.parametrize("hold", [dict, lambda rows: pd.DataFrame(rows, dtype=object)], ids=["dict", "frame"])
@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        ("sentence2", [3, "y", "z"], "pairs, row 0, sentence2: .*got 3"),
        ("score", [float("inf"), 2, 3], "row 0, score: expected a finite number, got inf"),
        ("score", [1, Decimal("NaN"), 3], "row 1, score: expected a finite number, got Decimal"),
        ("score", [1, "two", 3], "row 1, score: expected a finite number, got 'two'"),
        ("score", [1, 10**400, 3], "row 1, score: expected a finite number, got 1000"),
        ("score", [1, Decimal("sNaN"), 3], "row 1, score: expected a finite number, got Decimal"),
        ("score", [1, True, 3], "row 1, score: expected a finite number, got True"),
        ("score", [2, 2.0, 2], "All 3 scores in pairs are 2; a correlation needs at least two values"),
    ],
)
def test_cells_of_pairs(hold: Any, column: str, cells: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sts_task(hold({**PAIRS, column: cells}))


def test_one_pair_has_no_correlation() -> None:
    with pytest.raises(ValueError, match="pairs has one row; a correlation needs at least two"):
        sts_task({name: cells[:1] for name, cells in PAIRS.items()})


def test_own_tasks_need_distinct_names() -> None:
    one, other = sts_task(PAIRS), sts_task({**PAIRS, "score": [3, 2, 1]})
    with pytest.raises(ValueError, match=r"MySTS is given more than once; .*; name='\.\.\.' renames your own tasks"):
        chosen_tasks([one, other])
    with pytest.raises(ValueError, match=r"give each task once\.$"):
        chosen_tasks([one, one])


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
    judged = {"query_id": ["q1", "q2"], "corpus_id": ["d1", "d2"], "score": [Decimal(1), Decimal(2)]}
    retrieval_task(CORPUS, QUERIES, pd.DataFrame(judged))
    with pytest.raises(ValueError, match=r"must be a whole number .* got Decimal\('0.5'\)"):
        retrieval_task(CORPUS, QUERIES, pd.DataFrame({**judged, "score": [Decimal(1), Decimal("0.5")]}))


def test_cells_of_a_dataset() -> None:
    with pytest.raises(ValueError, match=r"pairs, row 0, sentence1: expected a non-empty text, got 1\. Fill it in or drop"):
        sts_task(Dataset.from_dict({**PAIRS, "sentence1": [1, 2, 3]}))
    with pytest.raises(ValueError, match=r"corpus: 1 of 2 rows have no text: id 2\. Use ''"):
        retrieval_task(Dataset.from_dict({"_id": [1, 2], "text": ["a", None]}), {"q": "x"}, {"q": [1]})


@pytest.mark.parametrize(
    ("pairs", "columns", "error", "message"),
    [
        ({**PAIRS, "score": [1, 2]}, {}, ValueError, "the same length; their lengths are sentence1: 3, .* score: 2"),
        (
            PAIRS,
            {"score": "label"},
            ValueError,
            "no column 'label'. Its columns: 'sentence1', .*Choose one with score='...'",
        ),
        (pd.DataFrame(PAIRS), {"sentence2": "b"}, ValueError, "pairs has no column 'b'.*sentence2='...'"),
        (Dataset.from_dict(PAIRS), {"sentence1": "b"}, ValueError, "pairs has no column 'b'"),
        (PAIRS, {"sentence2": "sentence1"}, ValueError, "different columns: sentence1='sentence1', sentence2='sentence1'"),
        ({}, {}, ValueError, "pairs has no column 'sentence1'. Its columns: none"),
        ({name: [] for name in PAIRS}, {}, ValueError, "pairs is empty"),
        (pd.DataFrame(PAIRS)[:0], {}, ValueError, "pairs is empty"),
        (Dataset.from_dict(PAIRS).select([]), {}, ValueError, "pairs is empty"),
        ({**PAIRS, "score": "123"}, {}, TypeError, "Column 'score' of pairs must be a list, got str"),
        ("pairs.csv", {}, TypeError, "pairs is 'pairs.csv'; read the file first, for example with pandas.read_csv"),
        ([PAIRS], {}, TypeError, r"pairs must be .*, got list. pandas.DataFrame\(rows\) makes a table"),
        (DatasetDict(dev=Dataset.from_dict(PAIRS)), {}, TypeError, r"DatasetDict; pass one of its splits \(dev\)"),
        (IterableDataset.from_generator(lambda: iter([])), {}, TypeError, "load it without streaming=True"),
    ],
)
def test_tables_of_pairs(pairs: Any, columns: dict[str, str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sts_task(pairs, **columns)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("STSBenchmark", ValueError, "'STSBenchmark' is a task of mteb, and results would be confused"),
        ("a/b", ValueError, "name='a/b' must work as a file name: use letters"),
        ("", ValueError, "name='' must work as a file name"),
        (3, TypeError, r"name must be a str, got 3 \(int\)"),
    ],
)
def test_names(name: Any, error: type[Exception], message: str) -> None:
    for make in (
        lambda: sts_task(PAIRS, name=name),
        lambda: pair_task({**PAIRS, "label": [0, 1, 1]}, name=name),
        lambda: retrieval_task(CORPUS, QUERIES, QRELS, name=name),
        lambda: classification_task(TRAIN, TEST, name=name),
    ):
        with pytest.raises(error, match=message):
            make()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"corpus": {}}, "corpus is empty"),
        ({"corpus": {"id": ["d1"], "text": ["one"]}}, r"id 'id': a dict must map ids to texts .*got \['d1'\]. For a table"),
        ({"corpus": {"d1": {"title": "one"}}}, "corpus, id 'd1': a dict must map ids to texts or to"),
        ({"corpus": {**CORPUS, "d1": None}}, "corpus: 1 of 3 rows have no text: id 'd1'. Use ''"),
        ({"corpus": {**CORPUS, "d1": {"text": "a", "title": 3}}}, "id 'd1': expected a string or nothing as .*, got 3"),
        ({"corpus": {**CORPUS, 1: "a", "1": "b"}}, r"repeated ids: '1' \(1 in all\). Keep one row"),
        ({"corpus": {**CORPUS, " ": "a"}}, "corpus, row 3: an id must be a non-empty string or an integer, got ' '"),
        ({"corpus": table("id text", (1, "a"), (1, "b"), (2, "c"), (2, "d"))}, r"repeated ids: '1', '2' \(2 in all\)"),
        ({"corpus": table("id text", (1, "a"), (None, "b"))}, "corpus, row 0: an id must be .*, got 1.0"),
        ({"corpus": table("doc text", (1, "a"))}, "needs the columns id and text, and lacks id: it has 'doc', 'text'"),
        (
            {"corpus": table("id body", (1, "a"))},
            "corpus needs the columns id and text, and lacks text: it has 'id', 'body'",
        ),
        ({"queries": {}}, "queries is empty"),
        ({"queries": {**QUERIES, "q2": ""}}, "queries: 1 of 2 rows have no text: id 'q2'. Fill them in"),
        ({"queries": {**QUERIES, "q2": 3}}, "queries, id 'q2': expected a non-empty text, got 3"),
        ({"corpus": {**CORPUS, "d1": 3}}, "corpus, id 'd1': expected a text, got 3"),
        ({"queries": table("id text", ("q1", "a"), ("q1", "b"))}, "queries: repeated ids: 'q1'"),
        ({"queries": table("id question", ("q1", "a"))}, "queries needs .*lacks text: it has 'id', 'question'"),
        ({"qrels": {}}, "qrels is empty"),
        ({"qrels": {"q1": []}}, "qrels is empty"),
        ({"qrels": {"q1": "d1"}}, "qrels, query 'q1': expected a list of document ids or a dict .*got 'd1'"),
        ({"qrels": {"q9": ["d1"]}}, r"qrels has query ids that are not in queries: 'q9' \(1 in all\)"),
        ({"qrels": {"q1": [f"x{i}" for i in range(5)]}}, r"not in corpus: 'x0', 'x1', 'x2', ... \(5 in all\)"),
        ({"qrels": {"q1": {"d1": -1}}}, "qrels, query 'q1', document 'd1': relevance must be a whole number .* got -1"),
        ({"qrels": {"q1": {"d1": 2**62}}}, r"relevance must be a whole number .* to 1,000,000, got 46116"),
        ({"qrels": {"q1": {"d1": 10**400}}}, "relevance must be a whole number .* got 1000"),
        ({"qrels": {"q1": {"d1": 0.5}}}, "relevance must be a whole number .* got 0.5"),
        ({"qrels": {"q1": {"d1": "1"}}}, "relevance must be a whole number .* got '1'"),
        ({"qrels": {"q1": {"d1": 0}}}, "No query has a relevant document in qrels: every relevance is 0"),
        ({"qrels": {"q1": ["d1", "d1"]}}, "qrels: document 'd1' is judged more than once for query 'q1'"),
        ({"qrels": {"q1": [None]}}, "qrels, document id: an id must be a non-empty string .*got None"),
        (
            {"qrels": table("query-id corpus-id score", ("q1", "d1", 1), ("q2", "d1", 1), ("q1", "d1", 2))},
            "qrels, row 2: document 'd1' is judged more than once for query 'q1'",
        ),
        (
            {"qrels": table("query_id corpus_id score", ("q1", "d1", 1), ("q1", "d2", None))},
            "qrels, row 1, query 'q1', document 'd2': relevance .* got nan",
        ),
        (
            {"qrels": table("query_id doc relevance", ("q1", "d1", 1))},
            "query_id, corpus_id and score, and lacks corpus_id, score: it has 'query_id', 'doc', 'relevance'",
        ),
    ],
)
def test_collections(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        retrieval_task(**{"corpus": CORPUS, "queries": QUERIES, "qrels": QRELS, **changed})


@pytest.mark.parametrize("argument", ["corpus", "queries", "qrels"])
def test_refuses_other_types_of_collections(argument: str) -> None:
    with pytest.raises(TypeError, match=f"{argument} must be .*got list"):
        retrieval_task(**{"corpus": CORPUS, "queries": QUERIES, "qrels": QRELS, argument: []})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("train", "test", "settings", "error", "message"),
    [
        (TRAIN, TEST, {"label": "topic"}, ValueError, "train has no column 'topic'.*label='...'"),
        (TRAIN, {"text": ["one"]}, {}, ValueError, "test has no column 'label'"),
        (TRAIN, {**TEST, "text": ["one", 2]}, {}, ValueError, "test, row 1, text: expected a non-empty text, got 2"),
        (TRAIN, {**TEST, "label": ["a", 1.5]}, {}, ValueError, "row 1, label: a label must be a string or .*got 1.5"),
        ({**TRAIN, "label": [1.0, 2.0] * 10}, TEST, {}, ValueError, "train, row 0, label: .*got 1.0"),
        (TRAIN, {**TEST, "label": ["c", "d"]}, {}, ValueError, r"only in test: 'c', 'd' \(2 in all\). No classifier"),
        ({**TRAIN, "label": ["a"] * 20}, TEST, {}, ValueError, r"train needs at least two different labels, got \['a'\]"),
        ({**TRAIN, "label": [0, 1] * 10}, TEST, {}, ValueError, "all strings or all integers; got 'a', 'b' and 0, 1"),
        (TRAIN, TEST, {"samples_per_label": 0}, ValueError, "samples_per_label must be 1 or more"),
        (TRAIN, TEST, {"n_experiments": 1.5}, TypeError, "n_experiments must be an integer"),
        (TRAIN, [TEST], {}, TypeError, "test must be .*got list"),
        (
            {**TRAIN, "label": [*LISTS["label"][:19], "b"]},
            TEST,
            {},
            ValueError,
            "row 19, label: expected a list of labels as",
        ),
        ({**TRAIN, "label": [*TRAIN["label"][:19], ["b"]]}, TEST, {}, ValueError, "row 19, label: expected one label as in"),
        (LISTS, TEST, {}, ValueError, "train has lists of labels, test has one label for each text"),
        (LISTS, LISTS_TEST, {"samples_per_label": 4}, ValueError, "samples_per_label must be 5 or more, got 4"),
        (
            {"text": list("abcde"), "label": [["a"], ["b"], ["a"], ["b"], []]},
            LISTS_TEST,
            {},
            ValueError,
            "train needs 5 texts with a label, got 4",
        ),
        (LISTS, {**LISTS_TEST, "label": [["a"], []]}, {}, ValueError, r"at least two different labels, got \['a'\]"),
    ],
)
def test_labels(train: Any, test: Any, settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        classification_task(train, test, **settings)


def test_differently_numbered_labels() -> None:
    def numbered(names: list[str]) -> Dataset:
        features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
        return Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)

    with pytest.raises(ValueError, match=re.escape("numbered differently: ['yes', 'no'] and ['no', 'yes']")):
        classification_task(numbered(["yes", "no"]), numbered(["no", "yes"]))


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
    with pytest.warns(DataWarning, match=re.escape(remark)) as found:
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


def test_excludes_queries_without_relevant_document() -> None:
    with pytest.warns(UserWarning, match="2 of 4"):
        task = retrieval_task(CORPUS, {**QUERIES, "q3": "third", "q4": "fourth"}, {**QRELS, "q1": {"d1": 0}, "q3": ["d3"]})
    split = task.dataset["default"]["test"]
    assert split["queries"]["id"] == ["q2", "q3"]
    assert split["relevant_docs"] == {"q2": {"d2": 2, "d1": 0}, "q3": {"d3": 1}}
