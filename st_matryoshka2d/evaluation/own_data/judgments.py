"""Relevance judgments: which document answers which query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, TypeAlias

import pandas as pd
from datasets import Dataset

from st_matryoshka2d.evaluation.own_data.tables import check_columns, check_kind, column_names, rows
from st_matryoshka2d.evaluation.own_data.values import identifier, relevance

__all__ = ["Judgments", "read_judgments"]

Judgments: TypeAlias = Dataset | pd.DataFrame | Mapping[Any, Mapping[Any, int] | Sequence[Any] | Set[Any]]


def read_judgments(given: Judgments) -> dict[str, dict[str, int]]:
    """Query id to document id to relevance.

    Args:
        given: What the user passed.

    Raises:
        TypeError: Neither a table nor a mapping.
        ValueError: A column is missing, an id is no id, a relevance is no whole number of 0 or more, or a document is
            judged twice for a query.

    Example:
        >>> read_judgments({"q1": ["d1", "d7"], "q2": {"d3": 2}})
        {'q1': {'d1': 1, 'd7': 1}, 'q2': {'d3': 2}}
    """
    check_kind(given, "qrels")
    found: dict[str, dict[str, int]] = {}
    judgments = _of_table(given) if isinstance(given, (Dataset, pd.DataFrame)) else _of_mapping(given)
    for where, query, document, value in judgments:
        query_id, document_id = identifier(query, f"{where}, query id"), identifier(document, f"{where}, document id")
        judged = found.setdefault(query_id, {})
        if document_id in judged:
            raise ValueError(f"{where}: document {document_id!r} is judged more than once for query {query_id!r}.")
        judged[document_id] = relevance(value, f"{where}, query {query_id!r}, document {document_id!r}")
    if not found:
        raise ValueError("qrels is empty; it needs at least one relevant document for one query.")
    return found


def _of_table(table: Dataset | pd.DataFrame) -> Iterator[tuple[str, Any, Any, Any]]:
    there = column_names(table)
    # The Hub's data sets write them with a hyphen.
    query, document = (column if column in there else column.replace("_", "-") for column in ("query_id", "corpus_id"))
    if missing := [column.replace("-", "_") for column in (query, document, "score") if column not in there]:
        raise ValueError(
            f"qrels needs the columns query_id, corpus_id and score; {' and '.join(missing)} is not among "
            f"{', '.join(map(repr, there)) or 'none'}. Rename the columns."
        )
    check_columns(table, "qrels", {"query_id": query, "corpus_id": document, "score": "score"})
    for row, cells in enumerate(rows(table, [query, document, "score"])):
        yield f"qrels, row {row}", *cells


def _of_mapping(given: Mapping[Any, Any]) -> Iterator[tuple[str, Any, Any, Any]]:
    for query, documents in given.items():
        if not isinstance(documents, (Mapping, list, tuple, Set)):
            raise ValueError(
                f"qrels, query {query!r}: expected a list of document ids or a dict of document ids to relevance, "
                f"got {documents!r:.60}."
            )
        graded = documents.items() if isinstance(documents, Mapping) else ((document, 1) for document in documents)
        for document, value in graded:
            yield "qrels", query, document, value
