"""Read and check users' documents, queries and judgments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from numbers import Integral
from typing import Any, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value

from st_matryoshka2d.encoding.texts import check_text, is_empty, is_missing
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.custom_data import (
    Table,
    check_columns,
    check_kind,
    column_names,
    first_of,
    float_of,
    rows,
    shortened,
    text,
)

_HIGHEST = 1_000_000  # relevance; trec_eval keeps a count for every grade up to the highest, and fails at huge ones

Texts: TypeAlias = Dataset | pd.DataFrame | Mapping[Any, str | Mapping[str, str]]
Judgments: TypeAlias = Dataset | pd.DataFrame | Mapping[Any, Mapping[Any, int] | Sequence[Any] | Set[Any]]


def read_queries(given: Texts) -> Dataset:
    """Convert queries to a `Dataset` with the columns id and text."""
    table, columns = _table(given, "queries", ["id", "text"])
    _refuse_without_text(table, columns, "queries", is_empty, "Fill them in, or drop them and their judgments.")
    for row, (name, words) in enumerate(rows(table, list(columns.values()))):
        text(words, f"queries, id {identifier(name, f'queries, row {row}')!r}")
    return _dataset(table, columns, "queries")


def read_corpus(given: Texts) -> Dataset:
    """Convert documents to a `Dataset` with the columns id, text and optionally title; data on disk stays on disk."""
    table, columns = _table(given, "corpus", ["id", "text", "title"])
    _refuse_without_text(table, columns, "corpus", is_missing, "Use '' if there is only a title, or drop them.")
    for row, (name, words, *title) in enumerate(rows(table, list(columns.values()))):
        where = f"corpus, id {identifier(name, f'corpus, row {row}')!r}"
        if not isinstance(words, str):
            raise UsageError(f"{where}: expected a text, got {words!r}.")
        if title and not isinstance(title[0], str) and not is_missing(title[0]):
            raise UsageError(f"{where}: expected a string or nothing as the title, got {title[0]!r}.")
        for part in (words, *title):
            check_text(part, where)
    return _dataset(table, columns, "corpus")


def _refuse_without_text(
    table: Table, columns: Mapping[str, str], what: str, lacking: Callable[[object], bool], remedy: str
) -> None:
    """Refuse rows without a text all at once: judgments name their ids, so none may be left out."""
    found = [name for name, words in rows(table, [columns["id"], columns["text"]]) if lacking(words)]
    if found:
        total = sum(1 for _ in rows(table, [columns["id"]]))
        raise UsageError(f"{what}: {len(found):,} of {total:,} rows have no text: id {first_of(found)}. {remedy}")


def _table(given: Texts, what: str, wanted: Sequence[str]) -> tuple[Table, dict[str, str]]:
    """Return the texts as a table, with its columns by role; ids may be called _id, as on the Hub."""
    check_kind(given, what)
    table = given if isinstance(given, (Dataset, pd.DataFrame)) else _of_mapping(given, what)
    there = column_names(table)
    columns = {column: column for column in wanted if column in there or column != "title"}
    if "id" not in there and "_id" in there:
        columns["id"] = "_id"
    check_columns(table, what, columns, needed="id and text")
    return table, columns


def _of_mapping(given: Mapping[Any, Any], what: str) -> dict[str, list[Any]]:
    documents = [document if isinstance(document, Mapping) else {"text": document} for document in given.values()]
    for name, document in zip(given, documents, strict=True):
        if isinstance(document.get("text", []), (list, tuple)):
            raise UsageError(
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
        raise UsageError(f"{what}: repeated ids: {first_of(repeated)} ({len(repeated)} in all). Keep one row for each.")
    return dataset


def _with_titles(cells: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {**cells, "title": ["" if is_missing(title) else title for title in cells["title"]]}


def read_judgments(given: Judgments) -> dict[str, dict[str, int]]:
    """Convert judgments to nested dicts: query id, document id, relevance."""
    check_kind(given, "qrels")
    found: dict[str, dict[str, int]] = {}
    judgments = _judged_in_table(given) if isinstance(given, (Dataset, pd.DataFrame)) else _judged_in_mapping(given)
    for where, query, document, value in judgments:
        query_id, document_id = identifier(query, f"{where}, query id"), identifier(document, f"{where}, document id")
        judged = found.setdefault(query_id, {})
        if document_id in judged:
            raise UsageError(f"{where}: document {document_id!r} is judged more than once for query {query_id!r}.")
        judged[document_id] = relevance(value, f"{where}, query {query_id!r}, document {document_id!r}")
    if not found:
        raise UsageError("qrels is empty; it needs at least one relevant document for one query.")
    return found


def _judged_in_table(table: Dataset | pd.DataFrame) -> Iterator[tuple[str, Any, Any, Any]]:
    there, columns = column_names(table), {name: name for name in ("query_id", "corpus_id", "score")}
    for name, hyphened in (("query_id", "query-id"), ("corpus_id", "corpus-id")):  # as in data sets on the Hub
        if hyphened in there and name not in there:
            columns[name] = hyphened
    check_columns(table, "qrels", columns, needed="query_id, corpus_id and score")
    for row, cells in enumerate(rows(table, list(columns.values()))):
        yield f"qrels, row {row}", *cells


def _judged_in_mapping(given: Mapping[Any, Any]) -> Iterator[tuple[str, Any, Any, Any]]:
    for query, documents in given.items():
        if not isinstance(documents, (Mapping, list, tuple, Set)):
            raise UsageError(
                f"qrels, query {query!r}: expected a list of document ids or a dict of document ids to relevance, "
                f"got {documents!r:.60}."
            )
        graded = documents.items() if isinstance(documents, Mapping) else ((document, 1) for document in documents)
        for document, value in graded:
            yield "qrels", query, document, value


def identifier(value: Any, where: str) -> str:
    """Check an id and return it as a string; integers are accepted."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return str(int(value))
    return text(value, where, "an id must be a non-empty string or an integer, got", "")


def relevance(value: Any, where: str) -> int:
    """Check a relevance: 0, 1, 2, ..."""
    grade = float_of(value)
    if not grade.is_integer() or not 0 <= grade <= _HIGHEST:
        raise UsageError(
            f"{where}: relevance must be a whole number from 0 (not relevant) to {_HIGHEST:,}, got {shortened(value)}."
        )
    return int(grade)
