"""Own data that make no task are refused when the task is built; the message names the table, the row and the cell."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDataset, Value

from st_matryoshka2d import classification_task, pair_task, retrieval_task, sts_task
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.tasks import chosen_tasks
from tests.support.own_data import CORPUS, LISTS, LISTS_TEST, PAIRS, QRELS, QUERIES, TEST, TRAIN, table

Call = Callable[[], object]


def sts(hold: Callable[[dict[str, Any]], Any] = dict, **cells: Any) -> Call:
    return lambda: sts_task(hold({**PAIRS, **cells}))


def frame(columns: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(columns, dtype=object)


def pairs(*labels: Any) -> Call:
    return lambda: pair_task({**PAIRS, "label": labels})


def search(**changed: Any) -> Call:
    return lambda: retrieval_task(**{"corpus": CORPUS, "queries": QUERIES, "qrels": QRELS, **changed})


def classes(test: Any = TEST, train: Any = TRAIN, **given: Any) -> Call:
    return lambda: classification_task(train, test, **given)


def trained(labels: list[Any], test: Any = TEST) -> Call:
    return classes(test, {**TRAIN, "label": labels})


def numbered(*names: str) -> Dataset:
    features = Features({"text": Value("string"), "label": ClassLabel(names=[*names])})
    return Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)


def named_alike(other: Any) -> Call:
    return lambda: chosen_tasks([sts_task(PAIRS), sts_task({**PAIRS, "score": other})])


MAKERS: list[Callable[..., object]] = [
    partial(sts_task, PAIRS),
    partial(pair_task, {**PAIRS, "label": [0, 1, 1]}),
    partial(retrieval_task, CORPUS, QUERIES, QRELS),
    partial(classification_task, TRAIN, TEST),
]
DIFFERENT_NAMES = r"MySTS is given more than once\. .* different names: name='\.\.\.'"
REFUSED: list[tuple[Call, type[Exception], str]] = [
    # Pairs with scores.
    *(
        row
        for hold in (dict, frame)
        for row in (
            (sts(hold, sentence2=[3, "y", "z"]), UsageError, "row 0.*sentence2.*got 3"),
            (sts(hold, score=[float("inf"), 2, 3]), UsageError, "row 0.*score.*got inf"),
            (sts(hold, score=[1, Decimal("NaN"), "two"]), UsageError, r"row 1.*score.*Decimal\('NaN'\).*Likewise 2"),
            (sts(hold, score=[2, 2.0, 2]), UsageError, "at least two.*got 1 in 3"),
        )
    ),
    (sts(Dataset.from_dict, sentence1=[1, 2, 3]), UsageError, "row 0.*got 1"),
    (sts(partial(pd.DataFrame, index=[2, 4, 5]), score=[1, "b", "c"]), UsageError, "row 4, score.*Likewise 5"),
    (sts(**{name: cells[:1] for name, cells in PAIRS.items()}), UsageError, "two.*got 1 in 1"),
    (lambda: sts_task(PAIRS, score="label"), UsageError, "'label'.*'sentence1'.*score="),
    (lambda: sts_task(pd.DataFrame(PAIRS), sentence2="b"), UsageError, "'b'.*'sentence2'.*sentence2="),
    (lambda: sts_task(PAIRS, sentence2="sentence1"), UsageError, "differ.*sentence1"),
    (lambda: sts_task({}), UsageError, "'sentence1'.*none"),
    *(
        (lambda empty=empty: sts_task(empty), UsageError, "pairs is empty")
        for empty in (dict.fromkeys(PAIRS, ()), pd.DataFrame(PAIRS)[:0], Dataset.from_dict(PAIRS).select([]))
    ),
    (lambda: sts_task("pairs.csv"), TypeError, "pairs.*str.*pandas"),
    (lambda: sts_task([PAIRS]), TypeError, "pairs.*list.*pandas"),
    (lambda: sts_task(DatasetDict(dev=Dataset.from_dict(PAIRS))), TypeError, "DatasetDict.*split"),
    (lambda: sts_task(IterableDataset.from_generator(lambda: iter([]))), TypeError, "IterableDataset"),
    # Pairs with labels.
    (pairs(1, 2, 0), UsageError, r"row 1.*label.*1 \(.*0 \(.*got 2"),
    (pairs(0.5, 1, 0), UsageError, "row 0.*got 0.5"),
    (pairs("entailment", "neutral", "entailment"), UsageError, "row 0.*got 'entailment'.*Likewise 1, 2"),
    (pairs([1], [0], [1]), UsageError, r"row 0.*got \[1\]"),
    (pairs(1, 1.0, True), UsageError, "two different labels.*got 1 in 3"),
    # Searches.
    (search(corpus={}), UsageError, "corpus is empty"),
    (search(corpus={"id": ["d1"], "text": ["one"]}), UsageError, r"id 'id'.*got \['d1'\]"),
    (search(corpus={"d1": {"title": "one"}}), UsageError, "id 'd1'.*text.*got None"),
    (search(corpus={**CORPUS, "d1": {"text": "a", "title": 3}}), UsageError, "id 'd1'.*title.*got 3"),
    (search(corpus={**CORPUS, "d1": 3}), UsageError, "id 'd1'.*text.*got 3"),
    (search(corpus={**CORPUS, 1: "a", "1": "b"}), UsageError, "corpus.*repeated.*'1'"),
    (search(corpus={**CORPUS, " ": "a"}), UsageError, "corpus, row 3, id.*got ' '"),
    (search(corpus=table("id text", (1, "a"), (None, "b"))), UsageError, "corpus, row 0, id.*got 1.0"),
    (search(corpus=table("doc text", (1, "a"))), UsageError, "corpus.*'id'.*'doc'"),
    (search(corpus=Dataset.from_dict({"_id": [1, 2], "text": ["a", None]})), UsageError, "id '2'.*got None"),
    (search(queries={}), UsageError, "queries is empty"),
    (search(queries={**QUERIES, "q2": ""}), UsageError, "queries, id 'q2', text.*got ''"),
    (search(queries=table("id text", ("q1", "a"), ("q1", "b"))), UsageError, "queries.*repeated.*'q1'"),
    (search(queries=table("id question", ("q1", "a"))), UsageError, "queries.*'text'.*'question'"),
    (search(qrels={"q1": []}), UsageError, "qrels is empty"),
    (search(qrels={"q1": "d1"}), UsageError, "qrels, query 'q1'.*list.*got 'd1'"),
    (search(qrels={"q9": ["d1"]}), UsageError, "not in queries.*'q9'"),
    (search(qrels={"q1": [f"x{i}" for i in range(5)]}), UsageError, "5 .*not in corpus.*'x0'"),
    (search(qrels={"q1": {"d1": -1}}), UsageError, r"\('q1', 'd1'\), score.*got -1"),
    (search(qrels={"q1": {"d1": 2**62}}), UsageError, r"\('q1', 'd1'\), score.*1,000,000.*got 46116"),
    (search(qrels={"q1": {"d1": Decimal("0.5")}}), UsageError, r"\('q1', 'd1'\), score.*0.5"),
    (search(qrels={"q1": {"d1": 0}}), UsageError, "every relevance is 0"),
    (search(qrels={"q1": ["d1", "d1"]}), UsageError, r"\('q1', 'd1'\).*one judgment"),
    (search(qrels={"q1": [None]}), UsageError, "row 0, corpus_id.*got None"),
    (search(qrels=table("query_id corpus_id score", ("q1", "d1", None))), UsageError, r"\('q1', 'd1'\), score.*got None"),
    (search(qrels=table("query_id doc relevance", ("q1", "d1", 1))), UsageError, "'corpus_id'.*'doc'"),
    (search(candidates={**QRELS, "q1": ["d1", "x"]}), UsageError, "candidates has 1 ids that are not in corpus"),
    (search(candidates={"q2": ["d1"]}), UsageError, "1 queries have none, such as"),
    *((search(**{name: []}), TypeError, f"{name}.*list") for name in ("corpus", "queries", "qrels")),
    # Labelled texts.
    (classes(label="topic"), UsageError, "train.*'topic'.*label="),
    (classes({"text": ["one"]}), UsageError, "test.*'label'"),
    (classes({**TEST, "text": ["one", 2]}), UsageError, "test, row 1, text.*got 2"),
    (classes({**TEST, "label": ["a", 1.5]}), UsageError, "test, row 1, label.*got 1.5"),
    (classes({**TEST, "label": ["c", "d"]}), UsageError, "only in test.*'c', 'd'.*2 in all"),
    (classes({**TEST, "label": [0, 1]}), UsageError, "all strings or all integers.*'a'.*0"),
    (classes(samples_per_label=0), UsageError, "samples_per_label.*got 0"),
    (trained(["a"] * 20), UsageError, r"train.*two.*\['a'\]"),
    (trained([*LISTS["label"][:19], "b"]), UsageError, "train, row 19, label.*list.*got 'b'"),
    (trained([*TRAIN["label"][:19], ["b"]]), UsageError, r"train, row 19, label.*one label.*got \['b'\]"),
    (trained(LISTS["label"]), UsageError, "lists"),
    (trained(LISTS["label"], {**TEST, "label": [["a"], []]}), UsageError, "two labels in test.*got 1,"),
    (trained([["a"], ["b"], ["a"], ["b"], *[[]] * 16], LISTS_TEST), UsageError, "5 labelled texts.*got 2, 4"),
    (classes(LISTS_TEST, LISTS, samples_per_label=4), UsageError, "samples_per_label=5.*and 4"),
    (classes(numbered("no", "yes"), numbered("yes", "no")), UsageError, r"\['yes', 'no'\], \['no', 'yes'\]"),
    (classes([TEST]), TypeError, "test.*list"),
    (classes(n_experiments=1.5), TypeError, "n_experiments.*1.5"),
    # Names.
    *((partial(make, name="STSBenchmark"), UsageError, "'STSBenchmark'.*mteb") for make in MAKERS),
    *((partial(make, name="a/b"), UsageError, "'a/b'") for make in MAKERS),
    *((partial(make, name=""), UsageError, "name=''") for make in MAKERS),
    *((partial(make, name=3), TypeError, "name.*3") for make in MAKERS),
    *((named_alike(scores), ValueError, DIFFERENT_NAMES) for scores in (PAIRS["score"], [3, 2, 1])),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_refused(call: Call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as refused:
        call()
    assert isinstance(refused.value, TypeError) == (error is TypeError)
