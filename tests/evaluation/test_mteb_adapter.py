"""Cells of the grid equal mteb's scores of the cut model for tasks of every type; scores of single queries are kept."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from mteb.mocks import mock_tasks
from mteb.mocks.mock_tasks.clustering import MockClusteringTask, MockMultilingualClusteringTask
from sentence_transformers import SentenceTransformer

from tests.support import labels, search
from tests.support.quick import quick
from tests.support.search import Collection, LocalRetrieval
from tests.support.sts import quiet
from tests.support.task_types import MakeTask, assert_grid_is_mteb, found, marks, random_sizes

pytestmark = marks

MOCKS: list[Any] = [MockClusteringTask, MockMultilingualClusteringTask]
NAMES = """
    MockAggregatedTask MockBitextMiningTask MockMultilingualBitextMiningTask MockMultilingualParallelBitextMiningTask
    MockClassificationTask MockMultilingualClassificationTask MockMultilabelClassification
    MockMultilingualMultilabelClassification LegacyMockClusteringFastTask MockMultilingualClusteringFastTask
    MockPairClassificationTask MockMultilingualPairClassificationTask MockRegressionTask MockRerankingTask
    MockMultilingualRerankingTask MockInstructionReranking MockMultilingualInstructionReranking MockRetrievalTask
    MockRetrievalDialogTask MockMultilingualRetrievalTask MockInstructionRetrieval
    MockMultilingualInstructionRetrieval MockSTSTask MockMultilingualSTSTask MockSummarizationTask
    MockMultilingualSummarizationTask MockTextZeroShotClassificationTask
"""
MOCKS += [vars(mock_tasks)[name] for name in re.findall(r"\w+", NAMES)]
ONE_OF_EACH_TYPE = [
    *(search.LocalRetrieval, search.LocalInstructionReranking, labels.BinaryClassification, labels.LocalMultilabel),
    *(labels.LocalRegression, labels.LegacyClustering, labels.LocalPairs, labels.LocalBitext, labels.LocalSummaries),
]
OTHERS = [
    *(search.FewResults, search.SkipFirst, search.ManySubsets, search.LocalReranking, search.LocalInstructions),
    *(labels.LocalClassification, labels.CrossValidated, labels.LocalClustering, labels.PairsInOneRow, labels.aggregate),
]


@pytest.mark.parametrize("mock", quick(MOCKS, mock_tasks.MockRerankingTask, mock_tasks.MockMultilabelClassification))
def test_mtebs_own_mock_tasks(minilm: SentenceTransformer, mock: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for repetitions in ("n_experiments", "n_clusters"):  # ten by default
        monkeypatch.setattr(mock, repetitions, 2, raising=False)
    sizes = random_sizes(minilm)
    assert_grid_is_mteb(quiet(minilm, mock(), sizes=sizes), minilm, mock, sizes)


@pytest.mark.parametrize("make_task", quick([*ONE_OF_EACH_TYPE, *OTHERS], *ONE_OF_EACH_TYPE))
def test_tasks_with_some_structure(tiny: SentenceTransformer, make_task: MakeTask) -> None:
    sizes = random_sizes(tiny)
    grid = quiet(tiny, make_task(), sizes=sizes)
    assert_grid_is_mteb(grid, tiny, make_task, sizes)
    frame = grid.to_frame()
    assert set(frame.loc[frame["is_main"], "metric"]) == {make_task().metadata.main_score}
    assert len({tuple(found(grid, size).values()) for size in sizes}) == len(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("make_task", [search.LocalRetrieval, labels.BinaryClassification, labels.LocalClustering])
def test_a_pretrained_model(minilm: SentenceTransformer, make_task: MakeTask) -> None:
    sizes = random_sizes(minilm)
    assert_grid_is_mteb(quiet(minilm, make_task(), sizes=sizes), minilm, make_task, sizes)


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
