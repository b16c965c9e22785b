"""Cells of the grid equal mteb's scores of the cut model for tasks of every type."""

from __future__ import annotations

from typing import Any

import pytest
from mteb.mocks import mock_tasks
from mteb.mocks.mock_tasks.clustering import MockClusteringTask, MockMultilingualClusteringTask
from sentence_transformers import SentenceTransformer

from tests.support import labels, search
from tests.support.quick import quick
from tests.support.sts import quiet
from tests.support.task_types import MakeTask, assert_grid_is_mteb, found, marks, random_sizes

pytestmark = marks

MOCKS = [
    mock_tasks.MockAggregatedTask,
    mock_tasks.MockBitextMiningTask,
    mock_tasks.MockMultilingualBitextMiningTask,
    mock_tasks.MockMultilingualParallelBitextMiningTask,
    mock_tasks.MockClassificationTask,
    mock_tasks.MockMultilingualClassificationTask,
    mock_tasks.MockMultilabelClassification,
    mock_tasks.MockMultilingualMultilabelClassification,
    mock_tasks.LegacyMockClusteringFastTask,
    mock_tasks.MockMultilingualClusteringFastTask,
    MockClusteringTask,
    MockMultilingualClusteringTask,
    mock_tasks.MockPairClassificationTask,
    mock_tasks.MockMultilingualPairClassificationTask,
    mock_tasks.MockRegressionTask,
    mock_tasks.MockRerankingTask,
    mock_tasks.MockMultilingualRerankingTask,
    mock_tasks.MockInstructionReranking,
    mock_tasks.MockMultilingualInstructionReranking,
    mock_tasks.MockRetrievalTask,
    mock_tasks.MockRetrievalDialogTask,
    mock_tasks.MockMultilingualRetrievalTask,
    mock_tasks.MockInstructionRetrieval,
    mock_tasks.MockMultilingualInstructionRetrieval,
    mock_tasks.MockSTSTask,
    mock_tasks.MockMultilingualSTSTask,
    mock_tasks.MockSummarizationTask,
    mock_tasks.MockMultilingualSummarizationTask,
    mock_tasks.MockTextZeroShotClassificationTask,
]
SEARCH = [
    search.LocalRetrieval,
    search.FewResults,
    search.SkipFirst,
    search.ManySubsets,
    search.LocalReranking,
    search.LocalInstructions,
    search.LocalInstructionReranking,
]
LABELS = [
    labels.LocalClassification,
    labels.BinaryClassification,
    labels.CrossValidated,
    labels.LocalMultilabel,
    labels.LocalRegression,
    labels.LocalClustering,
    labels.LegacyClustering,
    labels.LocalPairs,
    labels.PairsInOneRow,
    labels.LocalBitext,
    labels.LocalSummaries,
]
ONE_OF_EACH_TYPE = [
    search.LocalRetrieval,
    search.LocalInstructionReranking,
    labels.LocalClassification,
    labels.LocalMultilabel,
    labels.LocalRegression,
    labels.LegacyClustering,
    labels.LocalPairs,
    labels.LocalBitext,
    labels.LocalSummaries,
]


@pytest.mark.parametrize("mock", quick(MOCKS, mock_tasks.MockRerankingTask, mock_tasks.MockMultilabelClassification))
def test_mtebs_own_mock_tasks(minilm: SentenceTransformer, mock: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for repetitions in ("n_experiments", "n_clusters"):  # ten by default
        monkeypatch.setattr(mock, repetitions, 2, raising=False)
    sizes = random_sizes(minilm)
    assert_grid_is_mteb(quiet(minilm, mock(), sizes=sizes), minilm, mock, sizes)


@pytest.mark.parametrize("make_task", quick([*SEARCH, *LABELS, labels.aggregate], *ONE_OF_EACH_TYPE))
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
