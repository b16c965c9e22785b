"""Texts with ids: a corpus or queries, as mteb wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value

from st_matryoshka2d.evaluation.own_data.tables import Table, check_columns, check_kind, column_names, rows
from st_matryoshka2d.evaluation.own_data.values import first_of, identifier, is_missing, text
from st_matryoshka2d.texts import check_text

__all__ = ["Texts", "count_empty", "read_corpus", "read_queries"]

Texts: TypeAlias = Dataset | pd.DataFrame | Mapping[Any, str | Mapping[str, str]]


def read_queries(given: Texts) -> Dataset:
    """Queries as a `Dataset` with the columns id and text.

    Args:
        given: What the user passed.

    Raises:
        TypeError: Neither a table nor a mapping of ids to texts.
        ValueError: A column is missing, an id is missing or there twice, a text is missing or empty.
    """
    table, columns = _table(given, "queries", ["id", "text"])
    for row, (name, words) in enumerate(rows(table, list(columns.values()))):
        text(words, f"queries, id {identifier(name, f'queries, row {row}')!r}")
    return _dataset(table, columns, "queries")


def read_corpus(given: Texts) -> Dataset:
    """Documents as a `Dataset` with the columns id, text and, if there is one, title; one on disk stays on disk.

    Args:
        given: What the user passed.

    Raises:
        TypeError: Neither a table nor a mapping of ids to documents.
        ValueError: A column is missing, an id is missing or there twice, a text or title is no text. A document may be
            empty, as in public collections.
    """
    table, columns = _table(given, "corpus", ["id", "text", "title"])
    for row, (name, words, *title) in enumerate(rows(table, list(columns.values()))):
        where = f"corpus, id {identifier(name, f'corpus, row {row}')!r}"
        if not isinstance(words, str):
            raise ValueError(f"{where}: expected a text, got {words!r}. Fill it in, with '' if there is only a title.")
        if title and not isinstance(title[0], str) and not is_missing(title[0]):
            raise ValueError(f"{where}: expected a title that is a text or missing, got {title[0]!r}.")
        for part in (words, *title):
            check_text(part, where)
    return _dataset(table, columns, "corpus")


def count_empty(corpus: Dataset) -> int:
    """How many documents have neither text nor title."""
    columns = [column for column in ("text", "title") if column in corpus.column_names]
    return sum(not any(words.strip() for words in document) for document in rows(corpus, columns))


def _table(given: Texts, what: str, wanted: Sequence[str]) -> tuple[Table, dict[str, str]]:
    """The texts as a table, and which of its columns is what; an id may also be called _id, as on the Hub."""
    check_kind(given, what)
    table = given if isinstance(given, (Dataset, pd.DataFrame)) else _of_mapping(given, what)
    there = column_names(table)
    columns = {column: column for column in wanted if column in there or column != "title"}
    if "id" not in there and "_id" in there:
        columns["id"] = "_id"
    if missing := [column for column in columns.values() if column not in there]:
        raise ValueError(
            f"{what} needs the columns id and text; {' and '.join(missing)} is not among "
            f"{', '.join(map(repr, there)) or 'none'}. Rename the columns."
        )
    check_columns(table, what, columns)
    return table, columns


def _of_mapping(given: Mapping[Any, Any], what: str) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {"id": list(given), "text": [], "title": []}
    for name, document in given.items():
        if isinstance(document, (list, tuple)) or (isinstance(document, Mapping) and "text" not in document):
            raise ValueError(
                f"{what}, id {name!r}: a dict maps each id to a text or to {{'title': ..., 'text': ...}}, "
                f"got {document!r:.60}. A table of columns is a DataFrame or a Dataset."
            )
        words, title = (document["text"], document.get("title")) if isinstance(document, Mapping) else (document, None)
        table["text"].append(words)
        table["title"].append(title)
    if all(map(is_missing, table["title"])):
        del table["title"]
    return table


def _dataset(table: Table, columns: Mapping[str, str], what: str) -> Dataset:
    """The checked table with mteb's names and types; what is in a file is not brought into memory."""
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
    _check_unique(dataset, what)
    return dataset


def _with_titles(cells: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {**cells, "title": ["" if is_missing(title) else title for title in cells["title"]]}


def _check_unique(dataset: Dataset, what: str) -> None:
    # Arrow counts the ids where they are, in a file or in memory.
    tables = dataset.select_columns(["id"]).with_format("arrow").iter(10_000)
    counts = pa.chunked_array(chunk for table in tables for chunk in table["id"].chunks).value_counts()
    repeated = counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist()
    if repeated:
        raise ValueError(
            f"{what}: ids that are there more than once: {first_of(repeated)} ({len(repeated)} in all). Keep one of each."
        )
