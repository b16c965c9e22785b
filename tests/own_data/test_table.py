"""Invalid or questionable own data is reported when the task is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDataset, Value

from st_matryoshka2d import DataWarning, classification_task, pair_task, retrieval_task, sts_task
from st_matryoshka2d.errors import UsageError
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


def pairs_of(**cells: Any) -> dict[str, Any]:
    return {**PAIRS, **cells}


def search(**changed: Any) -> Any:
    return retrieval_task(**{"corpus": CORPUS, "queries": QUERIES, "qrels": QRELS, **changed})


def numbered(names: list[str]) -> Dataset:
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    return Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)


def refusals() -> Iterator[tuple[Callable[[], object], list[str]]]:
    """Yield calls, and what the error must name."""
    for hold in (dict, lambda cells: pd.DataFrame(cells, dtype=object)):
        for column, cells, words in [
            ("sentence2", [3, "y", "z"], ["row 0", "sentence2", "got 3"]),
            ("score", [float("inf"), 2, 3], ["row 0", "score", "got inf"]),
            ("score", [1, Decimal("NaN"), "two"], ["row 1", "score", "Decimal('NaN')", "Likewise 2"]),
            ("score", [2, 2.0, 2], ["at least two", "got 1 in 3"]),
        ]:
            yield partial(sts_task, hold(pairs_of(**{column: cells}))), words
    yield partial(sts_task, Dataset.from_dict(pairs_of(sentence1=[1, 2, 3]))), ["row 0", "got 1"]
    yield partial(sts_task, pd.DataFrame(pairs_of(score=[1, "b", "c"]), index=[2, 4, 5])), ["row 4, score", "Likewise 5"]
    yield partial(sts_task, {name: cells[:1] for name, cells in PAIRS.items()}), ["two", "got 1 in 1"]
    yield partial(sts_task, PAIRS, score="label"), ["'label'", "'sentence1'", "score="]
    yield partial(sts_task, pd.DataFrame(PAIRS), sentence2="b"), ["'b'", "'sentence2'", "sentence2="]
    yield partial(sts_task, PAIRS, sentence2="sentence1"), ["differ", "sentence1"]
    yield partial(sts_task, {}), ["'sentence1'", "none"]
    for empty in (dict.fromkeys(PAIRS, ()), pd.DataFrame(PAIRS)[:0], Dataset.from_dict(PAIRS).select([])):
        yield partial(sts_task, empty), ["pairs is empty"]
    for labels, words in [
        ([1, 2, 0], ["row 1", "label", "1 (", "0 (", "got 2"]),
        ([0.5, 1, 0], ["row 0", "got 0.5"]),
        (["entailment", "neutral", "entailment"], ["row 0", "got 'entailment'", "Likewise 1, 2"]),
        ([[1], [0], [1]], ["row 0", "got [1]"]),
        ([1, 1.0, True], ["two different labels", "got 1 in 3"]),
    ]:
        yield partial(pair_task, pairs_of(label=labels)), words
    for collection, words in [
        ({"corpus": {}}, ["corpus is empty"]),
        ({"corpus": {"id": ["d1"], "text": ["one"]}}, ["id 'id'", "got ['d1']"]),
        ({"corpus": {"d1": {"title": "one"}}}, ["id 'd1'", "text", "got None"]),
        ({"corpus": {**CORPUS, "d1": {"text": "a", "title": 3}}}, ["id 'd1'", "title", "got 3"]),
        ({"corpus": {**CORPUS, "d1": 3}}, ["id 'd1'", "text", "got 3"]),
        ({"corpus": {**CORPUS, 1: "a", "1": "b"}}, ["corpus", "repeated", "'1'"]),
        ({"corpus": {**CORPUS, " ": "a"}}, ["corpus, row 3, id", "got ' '"]),
        ({"corpus": table("id text", (1, "a"), (None, "b"))}, ["corpus, row 0, id", "got 1.0"]),
        ({"corpus": table("doc text", (1, "a"))}, ["corpus", "'id'", "'doc'"]),
        ({"corpus": Dataset.from_dict({"_id": [1, 2], "text": ["a", None]})}, ["id '2'", "got None"]),
        ({"queries": {}}, ["queries is empty"]),
        ({"queries": {**QUERIES, "q2": ""}}, ["queries, id 'q2', text", "got ''"]),
        ({"queries": table("id text", ("q1", "a"), ("q1", "b"))}, ["queries", "repeated", "'q1'"]),
        ({"queries": table("id question", ("q1", "a"))}, ["queries", "'text'", "'question'"]),
        ({"qrels": {"q1": []}}, ["qrels is empty"]),
        ({"qrels": {"q1": "d1"}}, ["qrels, query 'q1'", "list", "got 'd1'"]),
        ({"qrels": {"q9": ["d1"]}}, ["not in queries", "'q9'"]),
        ({"qrels": {"q1": [f"x{i}" for i in range(5)]}}, ["not in corpus", "'x0'", "5 "]),
        ({"qrels": {"q1": {"d1": -1}}}, ["('q1', 'd1'), score", "got -1"]),
        ({"qrels": {"q1": {"d1": 2**62}}}, ["('q1', 'd1'), score", "1,000,000", "got 46116"]),
        ({"qrels": {"q1": {"d1": Decimal("0.5")}}}, ["('q1', 'd1'), score", "0.5"]),
        ({"qrels": {"q1": {"d1": 0}}}, ["every relevance is 0"]),
        ({"qrels": {"q1": ["d1", "d1"]}}, ["('q1', 'd1')", "one judgment"]),
        ({"qrels": {"q1": [None]}}, ["row 0, corpus_id", "got None"]),
        ({"qrels": table("query_id corpus_id score", ("q1", "d1", None))}, ["('q1', 'd1'), score", "got None"]),
        ({"qrels": table("query_id doc relevance", ("q1", "d1", 1))}, ["'corpus_id'", "'doc'"]),
    ]:
        yield partial(search, **collection), words
    train, label = partial(classification_task, TRAIN), TRAIN["label"]
    yield partial(train, TEST, label="topic"), ["train", "'topic'", "label="]
    yield partial(train, {"text": ["one"]}), ["test", "'label'"]
    yield partial(train, {**TEST, "text": ["one", 2]}), ["test, row 1, text", "got 2"]
    yield partial(train, {**TEST, "label": ["a", 1.5]}), ["test, row 1, label", "got 1.5"]
    yield partial(train, {**TEST, "label": ["c", "d"]}), ["only in test", "'c', 'd'", "2 in all"]
    yield partial(train, {**TEST, "label": [0, 1]}), ["all strings or all integers", "'a'", "0"]
    yield partial(train, TEST, samples_per_label=0), ["samples_per_label", "got 0"]
    wrong: list[tuple[list[Any], Any, list[str]]] = [
        (["a"] * 20, TEST, ["train", "two", "['a']"]),
        ([*LISTS["label"][:19], "b"], TEST, ["train, row 19, label", "list", "got 'b'"]),
        ([*label[:19], ["b"]], TEST, ["train, row 19, label", "one label", "got ['b']"]),
        (LISTS["label"], TEST, ["lists"]),
        (LISTS["label"], {**LISTS_TEST, "label": [["a"], []]}, ["two labels in test", "got 1,"]),
        ([["a"], ["b"], ["a"], ["b"], *[[]] * 16], LISTS_TEST, ["5 labelled texts", "got 2, 4"]),
    ]
    for labels, test, words in wrong:
        yield partial(classification_task, {**TRAIN, "label": labels}, test), words
    few = partial(classification_task, LISTS, LISTS_TEST, samples_per_label=4)
    yield few, ["samples_per_label=5", "and 4"]
    other = partial(classification_task, numbered(["yes", "no"]), numbered(["no", "yes"]))
    yield other, ["['yes', 'no'], ['no', 'yes']"]
    for make in MAKERS:
        yield partial(make, name="STSBenchmark"), ["'STSBenchmark'", "mteb"]
        yield partial(make, name="a/b"), ["'a/b'"]
        yield partial(make, name=""), ["name=''"]


MAKERS = [
    partial(sts_task, PAIRS),
    partial(pair_task, pairs_of(label=[0, 1, 1])),
    search,
    partial(classification_task, TRAIN, TEST),
]


@pytest.mark.parametrize(("call", "words"), [*refusals()])
def test_wrong_data_are_refused(call: Callable[[], object], words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        call()
    assert not isinstance(refused.value, TypeError)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (partial(sts_task, "pairs.csv"), ["pairs", "str", "pandas"]),
        (partial(sts_task, [PAIRS]), ["pairs", "list", "pandas"]),
        (partial(sts_task, DatasetDict(dev=Dataset.from_dict(PAIRS))), ["DatasetDict", "split"]),
        (partial(sts_task, IterableDataset.from_generator(lambda: iter([]))), ["IterableDataset"]),
        *((partial(search, **{name: []}), [name, "list"]) for name in ("corpus", "queries", "qrels")),
        (partial(classification_task, TRAIN, [TEST]), ["test", "list"]),
        (partial(classification_task, TRAIN, TEST, n_experiments=1.5), ["n_experiments", "1.5"]),
        *((partial(make, name=3), ["name", "3"]) for make in MAKERS),
    ],
)
def test_what_is_no_table_is_a_type_error(call: Callable[[], object], words: list[str]) -> None:
    with pytest.raises(TypeError) as refused:
        call()
    assert [word for word in words if word not in str(refused.value)] == []


def test_own_tasks_need_distinct_names() -> None:
    one, other = sts_task(PAIRS), sts_task({**PAIRS, "score": [3, 2, 1]})
    for again in (one, other):
        with pytest.raises(ValueError, match=r"MySTS is given more than once\. .* different names: name='\.\.\.'"):
            chosen_tasks([one, again])


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
            lambda: sts_task(pd.DataFrame(pairs_of(score=[1, None, 4]), index=[2, 3, 5])),
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
