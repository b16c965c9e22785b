"""Scores of embedded texts, with bootstrap resamples of their pairs or queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytrec_eval
from numpy.typing import NDArray
from peers import unit
from reproduction.suites import search_tasks
from scipy.stats import rankdata

Rows = NDArray[np.floating]
_RESAMPLES = 500


@dataclass(frozen=True)
class Scores:
    """A score in percent, on the data and on resamples."""

    mean: float
    resampled: Rows


class Texts(ABC):
    """The distinct texts of several data sets, and how they are scored."""

    all: list[str]

    def scores(self, rows: Rows) -> Scores:
        """Return the mean score over the data sets, given one embedding per text."""
        each = np.stack(self.by_task(unit(np.asarray(rows, dtype=np.float32)))).mean(0)
        return Scores(100 * float(each[0]), 100 * each[1:])

    @abstractmethod
    def by_task(self, rows: Rows) -> list[Rows]:
        """Return each data set's score and its scores on resamples, which are the same in each call."""


def counts(size: int) -> Rows:
    """Return how often each of `size` items is drawn: once in the data itself, at random in resamples."""
    draw = np.random.default_rng(0)
    return np.vstack([np.ones(size), draw.multinomial(size, np.full(size, 1 / size), size=_RESAMPLES)])


class Pairs(Texts):
    """Pairs of texts, scored by Spearman's correlation."""

    def __init__(self, frames: list[pd.DataFrame]) -> None:
        self.all = list(dict.fromkeys(text for frame in frames for name in _SIDES for text in frame[name]))
        place = {text: row for row, text in enumerate(self.all)}
        self._pairs = [[frame[name].map(place).to_numpy() for name in _SIDES] for frame in frames]
        self._gold = [rankdata(frame["score"]) for frame in frames]

    def by_task(self, rows: Rows) -> list[Rows]:
        """Resamples correlate the ranks that pairs have among all pairs."""
        found = [rankdata((rows[one] * rows[two]).sum(1)) for one, two in self._pairs]
        return [_correlations(ranks, gold) for ranks, gold in zip(found, self._gold, strict=True)]


_SIDES = ("sentence1", "sentence2")


def _correlations(one: Rows, two: Rows) -> Rows:
    drawn = counts(len(one)) / len(one)
    one, two = one - one.mean(), two - two.mean()
    mean_one, mean_two = drawn @ one, drawn @ two
    both = drawn @ (one * two) - mean_one * mean_two
    return np.asarray(both / np.sqrt((drawn @ one**2 - mean_one**2) * (drawn @ two**2 - mean_two**2)))


@dataclass(frozen=True)
class _Task:
    """Ids, the rows of their texts, and the relevant documents of each query."""

    queries: list[str]
    documents: list[str]
    query_rows: NDArray[np.integer]
    document_rows: NDArray[np.integer]
    judged: dict[str, dict[str, int]]


class Search(Texts):
    """Queries and documents, scored by nDCG@10."""

    def __init__(self, tasks: list[Any]) -> None:
        self._tasks: list[_Task] = []
        seen: dict[str, int] = {}
        for task in tasks:
            task.load_data()
            data = task.dataset["default"]["test"]
            judged = {query: found for query, found in data["relevant_docs"].items() if any(found.values())}
            queries = {row["id"]: row["text"] for row in data["queries"] if row["id"] in judged}
            corpus = {row["id"]: f"{row.get('title') or ''} {row['text']}".strip() for row in data["corpus"]}
            places = [np.array([seen.setdefault(text, len(seen)) for text in side.values()]) for side in (queries, corpus)]
            self._tasks.append(_Task(list(queries), list(corpus), places[0], places[1], judged))
        self.all = list(seen)

    def by_task(self, rows: Rows) -> list[Rows]:
        """Return means over queries."""
        means = []
        for task in self._tasks:
            found = rows[task.query_rows] @ rows[task.document_rows].T
            best = np.argsort(-found, axis=1)[:, :10]
            ranked = {
                query: {task.documents[place]: float(of_query[place]) for place in places}
                for query, of_query, places in zip(task.queries, found, best, strict=True)
            }
            measured = pytrec_eval.RelevanceEvaluator(task.judged, {"ndcg_cut.10"}).evaluate(ranked)
            values = np.array([measured[query]["ndcg_cut_10"] for query in task.queries])
            means.append(counts(len(values)) @ values / len(values))
        return means


def sts(data: Path, names: Sequence[str]) -> Pairs:
    """Read STS sets."""
    return Pairs([pd.read_parquet(data / "sts" / name / "test.parquet") for name in names])


def search(data: Path, names: Sequence[str]) -> Search:
    """Read search tasks."""
    return Search(search_tasks(data, names))
