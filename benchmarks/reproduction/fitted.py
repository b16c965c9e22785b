"""Texts to align with."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

__all__ = ["DOCUMENTS", "SEARCH", "documents", "nli", "questions"]

SEARCH = ["cranfield", "cisi", "cacm", "wikiqa_test", "trecqa_test"]
DOCUMENTS = "10,000 NLI and the documents"


def nli(data: Path, count: int) -> list[str]:
    """Return NLI sentences: half premises, half entailed hypotheses."""
    frame = pd.read_parquet(data / "nli" / "triplets_train.parquet").sample(frac=1, random_state=0)
    return [*frame["anchor"][: count // 2], *frame["positive"][: count // 2]]


def documents(data: Path) -> list[str]:
    """Return 10,000 NLI sentences and the documents of the search tasks."""
    tables = [pd.read_parquet(data / "retrieval" / name / "corpus.parquet") for name in SEARCH]
    found = [
        " ".join(pair).strip() for table in tables for pair in zip(table["title"].fillna(""), table["text"], strict=True)
    ]
    return [*nli(data, 10_000), *found]


def questions(data: Path, name: str) -> list[str]:
    """Return the different questions of a file of pairs."""
    return list(pd.read_parquet(data / "pairs" / f"{name}.parquet")["anchor"].drop_duplicates())
