"""Read and check corpora, queries, judgments and labelled texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, Features, Value

from st_matryoshka2d.evaluation import custom_tables as tables
from st_matryoshka2d.evaluation.custom_tables import Table, first_of, identifier, is_missing, rows, text
from st_matryoshka2d.texts import check_text

Texts: TypeAlias = Dataset | pd.DataFrame | Mapping[Any, str | Mapping[str, str]]


def read_queries(given: Texts) -> Dataset:
    """Convert queries to a `Dataset` with the columns id and text."""
    table, columns = _table(given, "queries", ["id", "text"])
    for row, (name, words) in enumerate(rows(table, list(columns.values()))):
        text(words, f"queries, id {identifier(name, f'queries, row {row}')!r}")
    return _dataset(table, columns, "queries")


def read_corpus(given: Texts) -> Dataset:
    """Convert documents to a `Dataset` with the columns id, text and optionally title; data on disk stays on disk."""
    table, columns = _table(given, "corpus", ["id", "text", "title"])
    for row, (name, words, *title) in enumerate(rows(table, list(columns.values()))):
        where = f"corpus, id {identifier(name, f'corpus, row {row}')!r}"
        if not isinstance(words, str):
            raise ValueError(f"{where}: expected a text, got {words!r}. Use '' if there is only a title.")
        if title and not isinstance(title[0], str) and not is_missing(title[0]):
            raise ValueError(f"{where}: expected a string or nothing as the title, got {title[0]!r}.")
        for part in (words, *title):
            check_text(part, where)
    return _dataset(table, columns, "corpus")


def _table(given: Texts, what: str, wanted: Sequence[str]) -> tuple[Table, dict[str, str]]:
    """Return the texts as a table, with its columns by role; ids may be called _id, as on the Hub."""
    tables.check_kind(given, what)
    table = given if isinstance(given, (Dataset, pd.DataFrame)) else _of_mapping(given, what)
    there = tables.column_names(table)
    columns = {column: column for column in wanted if column in there or column != "title"}
    if "id" not in there and "_id" in there:
        columns["id"] = "_id"
    tables.check_columns(table, what, columns, needed="id and text")
    return table, columns


def _of_mapping(given: Mapping[Any, Any], what: str) -> dict[str, list[Any]]:
    documents = [document if isinstance(document, Mapping) else {"text": document} for document in given.values()]
    for name, document in zip(given, documents, strict=True):
        if isinstance(document.get("text", []), (list, tuple)):
            raise ValueError(
                f"{what}, id {name!r}: a dict must map ids to texts or to {{'title': ..., 'text': ...}}, "
                f"got {given[name]!r:.60}. For a table of columns use a DataFrame or a Dataset."
            )
    table = {"id": list(given), "text": [document["text"] for document in documents]}
    titles = [document.get("title") for document in documents]
    return table if all(map(is_missing, titles)) else {**table, "title": titles}


def _dataset(table: Table, columns: Mapping[str, str], what: str) -> Dataset:
    """Convert a checked table to mteb's names and types, without loading files into memory."""
    features = Features({column: Value("string") for column in columns})
    if isinstance(table, Dataset):
        dataset = table.with_format(None).select_columns(list(columns.values()))
        dataset = dataset.rename_columns({old: new for new, old in columns.items() if old != new})
        if pa.types.is_integer(dataset.features["id"].pa_type):
            dataset = dataset.cast_column("id", Value("string"))
        if "title" in columns and any(is_missing(title) for (title,) in rows(dataset, ["title"])):
            dataset = dataset.map(_with_titles, batched=True, features=features)
    else:
        cells = {new: [cell for (cell,) in rows(table, [old])] for new, old in columns.items()}
        cells["id"] = [str(name) for name in cells["id"]]
        dataset = Dataset.from_dict(_with_titles(cells) if "title" in cells else cells, features=features)
    # Arrow counts the ids in place, in a file or in memory.
    batches = dataset.select_columns(["id"]).with_format("arrow").iter(10_000)
    counts = pa.chunked_array(chunk for batch in batches for chunk in batch["id"].chunks).value_counts()
    if repeated := counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist():
        raise ValueError(f"{what}: repeated ids: {first_of(repeated)} ({len(repeated)} in all). Keep one row for each.")
    return dataset


def _with_titles(cells: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {**cells, "title": ["" if is_missing(title) else title for title in cells["title"]]}


Judgments: TypeAlias = Dataset | pd.DataFrame | Mapping[Any, Mapping[Any, int] | Sequence[Any] | Set[Any]]


def read_judgments(given: Judgments) -> dict[str, dict[str, int]]:
    """Convert judgments to nested dicts: query id, document id, relevance."""
    tables.check_kind(given, "qrels")
    found: dict[str, dict[str, int]] = {}
    judgments = _judged_in_table(given) if isinstance(given, (Dataset, pd.DataFrame)) else _judged_in_mapping(given)
    for where, query, document, value in judgments:
        query_id, document_id = identifier(query, f"{where}, query id"), identifier(document, f"{where}, document id")
        judged = found.setdefault(query_id, {})
        if document_id in judged:
            raise ValueError(f"{where}: document {document_id!r} is judged more than once for query {query_id!r}.")
        judged[document_id] = tables.relevance(value, f"{where}, query {query_id!r}, document {document_id!r}")
    if not found:
        raise ValueError("qrels is empty; it needs at least one relevant document for one query.")
    return found


def _judged_in_table(table: Dataset | pd.DataFrame) -> Iterator[tuple[str, Any, Any, Any]]:
    there = tables.column_names(table)
    # Data sets on the Hub use a hyphen.
    hyphened = {"query_id": "query-id", "corpus_id": "corpus-id"}
    query, document = (other if other in there and name not in there else name for name, other in hyphened.items())
    columns = {"query_id": query, "corpus_id": document, "score": "score"}
    tables.check_columns(table, "qrels", columns, needed="query_id, corpus_id and score")
    for row, cells in enumerate(rows(table, list(columns.values()))):
        yield f"qrels, row {row}", *cells


def _judged_in_mapping(given: Mapping[Any, Any]) -> Iterator[tuple[str, Any, Any, Any]]:
    for query, documents in given.items():
        if not isinstance(documents, (Mapping, list, tuple, Set)):
            raise ValueError(
                f"qrels, query {query!r}: expected a list of document ids or a dict of document ids to relevance, "
                f"got {documents!r:.60}."
            )
        graded = documents.items() if isinstance(documents, Mapping) else ((document, 1) for document in documents)
        for document, value in graded:
            yield "qrels", query, document, value


Label: TypeAlias = str | int


@dataclass(frozen=True)
class Labelled:
    """Texts with labels; `several`: the labels are lists; `names`: class names of numbered labels."""

    texts: list[str]
    labels: list[tuple[Label, ...]]
    several: bool
    names: list[str] | None

    def counts(self) -> Counter[Label]:
        """Count the texts of each label."""
        return Counter(label for labels in self.labels for label in dict.fromkeys(labels))


def read_labelled(table: Table, what: str, text_column: str, label_column: str) -> Labelled:
    """Read the texts of a split and their labels."""
    tables.check_columns(table, what, {"text": text_column, "label": label_column})
    texts, labels, several = [], [], False
    for row, (words, value) in enumerate(rows(table, [text_column, label_column])):
        where = f"{what}, row {row}, {label_column}"
        is_list = isinstance(value, (list, tuple, np.ndarray))
        several = is_list if row == 0 else several
        if is_list != several:
            kind = "a list of labels" if several else "one label"
            raise ValueError(f"{where}: expected {kind} as in row 0, got {value!r}.")
        texts.append(text(words, f"{what}, row {row}, {text_column}"))
        labels.append(tuple(_label(label, where) for label in (value if is_list else [value])))
    feature = table.features[label_column] if isinstance(table, Dataset) else None
    feature = getattr(feature, "feature", feature)  # of a list
    return Labelled(texts, labels, several, list(feature.names) if isinstance(feature, ClassLabel) else None)


def check_labels(train: Labelled, test: Labelled) -> list[Label]:
    """Check the labels of both splits and return all of them in the order of their numbers."""
    if train.several != test.several:
        kinds = ["lists of labels" if split.several else "one label for each text" for split in (train, test)]
        raise ValueError(f"train has {kinds[0]}, test has {kinds[1]}; both need the same.")
    if train.names and test.names and train.names != test.names:
        raise ValueError(f"The labels of train and test are numbered differently: {train.names} and {test.names}.")
    learnt, asked = set(train.counts()), set(test.counts())
    if len({type(label) for label in learnt | asked}) > 1:
        texts, numbers = (sorted(label for label in learnt | asked if isinstance(label, kind)) for kind in (str, int))
        raise ValueError(f"Labels must be all strings or all integers; got {first_of(texts)} and {first_of(numbers)}.")
    if len(learnt) < 2:
        raise ValueError(f"train needs at least two different labels, got {sorted(learnt)}.")
    if unlearnt := sorted(asked - learnt):
        raise ValueError(
            f"Labels that are only in test: {first_of(unlearnt)} ({len(unlearnt)} in all). "
            "No classifier can learn them. Add them to train or drop their texts."
        )
    # mteb's average precision needs labels 0 and 1 in a binary test, so the labels of the test come first.
    return sorted(learnt, key=lambda label: (label not in asked, label))


def _label(value: Any, where: str) -> Label:
    if isinstance(value, Integral):
        return int(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: a label must be a string or an integer, got {value!r}. Fix it or drop the row.")
    check_text(value, where)
    return value
