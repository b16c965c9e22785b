"""Cells of the grid equal mteb's scores of the cut model for tasks of every type."""

from __future__ import annotations

import re
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
