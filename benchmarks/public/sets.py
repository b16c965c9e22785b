"""Two public search tasks whole, and questions beside them that nobody asks, scored as mteb scores them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pandas as pd
import pytrec_eval
from numpy.typing import NDArray

from st_matryoshka2d import retrieval_task

__all__ = ["TASKS", "PublicSet", "Rows"]

Rows = NDArray[np.floating]
TASKS = {"scifact": "SciFact", "mlquestions": "MLQuestions"}  # their names in mteb
_RANKED = 100  # documents of a query that are scored: ten, and all that may have the same score
METRIC = "ndcg_cut.10"


class PublicSet:
    """A search task of mteb with the data of a folder.

    Args:
        data: The folder.
        name: One of `TASKS`.
        most: Documents at most: the relevant ones, and others at random; None for all.
        draw: Number of the order of documents, which says what their halves are.

    Attributes:
        documents: Titles and texts, as mteb joins them; some texts occur several times.
        relevant: Places of the relevant documents of each query.
        questions: Texts like the queries, in random order; none is asked.
    """

    def __init__(self, data: Path, name: str, most: int | None = None, draw: int = 0) -> None:
        corpus, queries, qrels, questions = (
            pd.read_parquet(data / "retrieval" / name / f"{part}.parquet")
            for part in ("corpus", "queries", "qrels", "questions")
        )
        if most is not None:
            order = corpus["id"].isin(qrels["corpus_id"]).to_numpy() + np.random.default_rng(0).random(len(corpus))
            corpus = corpus.iloc[np.sort(np.argsort(-order)[:most])]
        # mteb leaves a document out that has the id of the query
        corpus["id"], queries["id"] = "C" + corpus["id"], "Q" + queries["id"]
        qrels = qrels.assign(corpus_id="C" + qrels["corpus_id"], query_id="Q" + qrels["query_id"])
        own = retrieval_task(corpus, queries, qrels, name=name)
        self.task: Any = mteb.get_task(TASKS[name], eval_splits=["test"])
        self.task.dataset, self.task.data_loaded = own.dataset, True
        split = own.dataset["default"]["test"]
        # as mteb judges: copies of a relevant passage are not relevant
        split["relevant_docs"] = {
            str(query): dict(zip(rows["corpus_id"], rows["score"].astype(int), strict=True))
            for query, rows in qrels.groupby("query_id")
        }
        self.name, self._judged, self._draw = name, split["relevant_docs"], draw
        self.documents = [f"{row.get('title') or ''} {row['text']}".strip() for row in split["corpus"]]
        self.queries = list(split["queries"]["text"])
        self._documents, self._queries = list(split["corpus"]["id"]), list(split["queries"]["id"])
        places = {each: place for place, each in enumerate(self._documents)}
        self.relevant = [[places[each] for each, grade in self._judged[one].items() if grade] for one in self._queries]
        self.questions = list(dict.fromkeys(questions["text"].sample(frac=1, random_state=0)))

    def ndcg(self, scores: Rows) -> Rows:
        """Return nDCG@10 (%) of each query from scores (queries, documents); equal ones are ordered as in mteb."""
        best = np.argpartition(-scores, min(_RANKED, scores.shape[1] - 1), axis=1)[:, :_RANKED]
        ranked = {
            query: {self._documents[place]: float(row[place]) for place in places}
            for query, row, places in zip(self._queries, scores, best, strict=True)
        }
        found = pytrec_eval.RelevanceEvaluator(self._judged, {METRIC}).evaluate(ranked)
        return np.array([100 * found[query]["ndcg_cut_10"] for query in self._queries])

    def search(self, queries: Rows, documents: Rows) -> Rows:
        """Return nDCG@10 (%) of each query by the cosine of embeddings."""
        return self.ndcg(unit(queries) @ unit(documents).T)

    def some(self, share: float) -> list[str]:
        """Return a share of the different documents, in random order; smaller shares begin larger ones."""
        different = list(dict.fromkeys(self.documents))
        drawn = np.random.default_rng(self._draw).permutation(len(different))[: int(share * len(different))]
        return [different[place] for place in drawn]

    def seen(self, documents: Sequence[str]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Tell which queries have all of their relevant documents among these, and which have none."""
        there = set(documents)
        found = [[self.documents[place] in there for place in relevant] for relevant in self.relevant]
        return np.array([all(one) for one in found]), np.array([not any(one) for one in found])


def unit(rows: Rows) -> Rows:
    """Scale rows to unit length."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12))
