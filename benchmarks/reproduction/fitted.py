"""Texts to align with, by the name of their row in `alignment.py`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

__all__ = ["COUNTS", "CUT", "DOCUMENTS", "FITTED", "FOR_THE_LADDER", "SEARCH", "TRAINED", "documents", "nli"]

SEARCH = ["cranfield", "cisi", "cacm", "wikiqa_test", "trecqa_test"]
COUNTS = [100, 1_000, 10_000, 50_000]
CUT = "not aligned"
DOCUMENTS = "10,000 NLI and the documents"
QUORA = f"{DOCUMENTS}, 5,000 Quora questions"
QUESTIONS = f"{DOCUMENTS}, 955 training questions"
TRAINED = f"{QUESTIONS}, trained on them"
SAMPLE = "10,000 NLI, a quarter of the documents, 955 training questions"
FOR_THE_LADDER = f"{COUNTS[-1]:,} NLI, for the ladder"


def nli(data: Path, count: int) -> list[str]:
    """Return NLI sentences: half premises, half entailed hypotheses."""
    frame = pd.read_parquet(data / "nli" / "triplets_train.parquet").sample(frac=1, random_state=0)
    return [*frame["anchor"][: count // 2], *frame["positive"][: count // 2]]


def captions(data: Path, count: int) -> list[str]:
    """Return photo captions."""
    frame = pd.read_parquet(data / "pairs" / "captions_train.parquet").sample(frac=1, random_state=0)
    return [*frame["anchor"][: count // 2], *frame["positive"][: count // 2]]


def documents(data: Path, names: Sequence[str] = SEARCH) -> list[str]:
    """Return 10,000 NLI sentences and the documents of the search tasks."""
    tables = [pd.read_parquet(data / "retrieval" / name / "corpus.parquet") for name in names]
    found = [
        " ".join(pair).strip() for table in tables for pair in zip(table["title"].fillna(""), table["text"], strict=True)
    ]
    return [*nli(data, 10_000), *found]


def questions(data: Path, name: str) -> list[str]:
    """Return the different questions of a file of pairs."""
    return list(pd.read_parquet(data / "pairs" / f"{name}.parquet")["anchor"].drop_duplicates())


def documents_and_questions(options: argparse.Namespace, one_in: int = 1) -> list[str]:
    """Return 10,000 NLI sentences, one in so many of the documents, and questions of two training splits."""
    texts = documents(options.data, options.search)
    asked = [questions(options.data, name) for name in ("wikiqa_train", "trecqa_train")]
    return [*texts[:10_000], *texts[10_000::one_in], *asked[0], *asked[1]]


FITTED: dict[str, Callable[[argparse.Namespace], list[str]] | None] = {
    CUT: None,
    **{f"{count:,} NLI": lambda options, count=count: nli(options.data, count) for count in COUNTS},  # type: ignore[misc]
    "10,000 captions": lambda options: captions(options.data, 10_000),
    FOR_THE_LADDER: lambda options: nli(options.data, COUNTS[-1]),
    DOCUMENTS: lambda options: documents(options.data, options.search),
    QUORA: lambda options: [*documents(options.data, options.search), *questions(options.data, "quora_train")[:5000]],
    QUESTIONS: documents_and_questions,
    TRAINED: documents_and_questions,
    SAMPLE: lambda options: documents_and_questions(options, one_in=4),
}
