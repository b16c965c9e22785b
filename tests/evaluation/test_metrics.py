"""Scores of single queries are kept for the metrics that papers compare."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests.support.search import Collection, LocalRetrieval
from tests.support.sts import quiet


def reciprocal_ranks(model: SentenceTransformer, collection: Collection, cut: int = 10) -> dict[str, float]:
    """A loop over the queries: one over the rank of the first relevant document, 0 below the cut."""
    documents = list(collection.documents.values())
    texts = [f"{document['title']} {document['text']}".strip() for document in documents]
    corpus = model.encode(texts, normalize_embeddings=True, convert_to_numpy=True)
    found = {}
    for query, judged in collection.judgments.items():
        if not judged:
            continue
        one = model.encode([collection.queries[query]], normalize_embeddings=True, convert_to_numpy=True)[0]
        best = np.argsort(-(corpus @ one), kind="stable")
        ranked = [documents[number]["id"] for number in best]
        ranks = [rank for rank, name in enumerate(ranked[:cut], 1) if judged.get(name, 0) > 0]
        found[query] = 1 / ranks[0] if ranks else 0.0
    return found


class WithRecall(LocalRetrieval):
    k_values = (1, 10, 100)


def test_each_query_has_its_reciprocal_rank(tiny: SentenceTransformer) -> None:
    grid = quiet(tiny, WithRecall(), sizes=["4L-32d"])
    items = grid.items.set_index("metric")
    assert list(items.index) == ["ndcg_at_10", "mrr_at_10", "recall_at_100"]
    assert all(ids == items["ids"].iloc[0] for ids in items["ids"])
    for metric, each in items["values"].items():
        assert each.mean() == pytest.approx(grid.score("4L-32d", metric=str(metric)), abs=1e-4)
    expected = reciprocal_ranks(tiny, Collection(0))
    found = dict(zip(items["ids"]["mrr_at_10"], items["values"]["mrr_at_10"], strict=True))
    different = [query for query in expected if abs(expected[query] - found[query]) > 1e-6]
    assert not different
