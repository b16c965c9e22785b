"""The order of sizes, other tasks, repeated runs and several processes change no score, for tasks of many types."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, Size
from tests.support import labels, search
from tests.support.quick import quick
from tests.support.sts import LocalSTS, quiet
from tests.support.task_types import MakeTask, assert_grid_is_mteb, found, marks, random_sizes

pytestmark = marks

KINDS = [labels.LocalClassification, labels.LocalMultilabel, labels.LocalClustering, LocalSTS, search.LocalRetrieval]
SIZES = [Size(2, 8), Size(4, 32), Size(1, 21)]


def assert_same(one: GridResult, other: GridResult) -> None:
    pd.testing.assert_frame_equal(one.to_frame(), other.to_frame(), check_exact=True)


@pytest.mark.slow
def test_the_order_of_sizes_does_not_matter(tiny: SentenceTransformer) -> None:
    """The state of a task's random generator must not affect later sizes."""
    sizes = [Size(1, 8), Size(4, 32), Size(2, 20)]
    for make_task in (labels.LocalClustering, labels.LocalMultilabel):
        one, other = quiet(tiny, make_task(), sizes=sizes), quiet(tiny, make_task(), sizes=sizes[::-1])
        for size in sizes:
            assert found(one, size) == pytest.approx(found(other, size), abs=0, nan_ok=True)
            assert found(quiet(tiny, make_task(), sizes=[size]), size) == pytest.approx(found(one, size), nan_ok=True)


@pytest.mark.parametrize("make_task", quick([search.FewResults, *KINDS], search.FewResults))
def test_one_task_object_twice_and_loaded(tiny: SentenceTransformer, make_task: MakeTask) -> None:
    """Data that is loaded already is used, and left as it is."""
    task, size = make_task(), Size(3, 16)
    once = quiet(tiny, task, sizes=[size])
    assert_same(once, quiet(tiny, task, sizes=[size]))
    task.load_data()
    assert_same(once, quiet(tiny, task, sizes=[size]))
    assert task.data_loaded
    assert_grid_is_mteb(once, tiny, make_task, [size])


@pytest.mark.slow
def test_a_benchmark_of_many_types(tiny: SentenceTransformer) -> None:
    sizes = random_sizes(tiny)[:1]
    grid = quiet(tiny, labels.benchmark(), sizes=sizes)
    assert grid.tasks == [task.metadata.name for task in labels.benchmark().tasks]
    for task in labels.benchmark().tasks:
        assert_grid_is_mteb(grid.at(tasks=task.metadata.name), tiny, type(task), sizes)


@pytest.mark.slow
def test_two_processes_and_each_task_alone_give_the_same_bits(tiny: SentenceTransformer) -> None:
    alone = quiet(tiny, [kind() for kind in KINDS], sizes=SIZES)
    assert_same(alone, quiet(tiny, [kind() for kind in KINDS], sizes=SIZES, n_jobs=2))
    for kind in reversed(KINDS):
        of_kind = alone.at(tasks=kind.metadata.name)
        assert_grid_is_mteb(of_kind, tiny, kind, SIZES)
        frame = of_kind.to_frame().reset_index(drop=True)
        pd.testing.assert_frame_equal(quiet(tiny, kind(), sizes=SIZES).to_frame(), frame, check_exact=True)


@pytest.mark.slow
def test_two_processes_and_several_precisions(tiny: SentenceTransformer) -> None:
    wanted: dict[str, Any] = {"sizes": SIZES, "precisions": ["float32", "int8", "binary"]}
    alone = quiet(tiny, [labels.BinaryClassification(), search.FewResults()], **wanted)
    assert_same(alone, quiet(tiny, [labels.BinaryClassification(), search.FewResults()], n_jobs=2, **wanted))
