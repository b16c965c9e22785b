"""Chunks, batches, the order of sizes and other tasks change no score, for tasks of many types."""

from __future__ import annotations

import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, Size
from tests.support import labels, search
from tests.support.quick import quick
from tests.support.sts import quiet
from tests.support.task_types import MakeTask, assert_grid_is_mteb, found, marks, random_sizes

pytestmark = marks


def same(one: GridResult, other: GridResult) -> bool:
    return one.to_frame().equals(other.to_frame())


@pytest.mark.parametrize(
    "make_task", quick([search.FewResults, search.SkipFirst, search.LocalRetrieval, search.ManySubsets], search.SkipFirst)
)
def test_a_corpus_in_many_chunks_gives_what_one_chunk_gives(tiny: SentenceTransformer, make_task: MakeTask) -> None:
    sizes = random_sizes(tiny)
    grid = quiet(tiny, make_task(), sizes=sizes, corpus_chunk_size=7)
    assert_grid_is_mteb(grid, tiny, make_task, sizes)
    assert same(grid, quiet(tiny, make_task(), sizes=sizes, corpus_chunk_size=1000))


@pytest.mark.parametrize("batch_size", quick([1, 5, 1000], 5))
def test_any_batch_size(tiny: SentenceTransformer, batch_size: int) -> None:
    sizes = random_sizes(tiny)
    for make_task in (search.FewResults, labels.BinaryClassification):
        grid = quiet(tiny, make_task(), sizes=sizes, batch_size=batch_size)
        assert_grid_is_mteb(grid, tiny, make_task, sizes)


@pytest.mark.slow
def test_the_order_of_sizes_does_not_matter(tiny: SentenceTransformer) -> None:
    """The state of a task's random generator must not affect later sizes."""
    sizes = [Size(1, 8), Size(4, 32), Size(2, 20)]
    for make_task in (labels.LocalClustering, labels.LocalMultilabel):
        one, other = quiet(tiny, make_task(), sizes=sizes), quiet(tiny, make_task(), sizes=sizes[::-1])
        for size in sizes:
            assert found(one, size) == pytest.approx(found(other, size), abs=0, nan_ok=True)
            assert found(quiet(tiny, make_task(), sizes=[size]), size) == pytest.approx(found(one, size), nan_ok=True)


@pytest.mark.parametrize(
    "make_task", quick([labels.LocalClustering, labels.LocalMultilabel, search.FewResults], search.FewResults)
)
def test_one_task_object_twice(tiny: SentenceTransformer, make_task: MakeTask) -> None:
    task, size = make_task(), Size(3, 16)
    assert same(quiet(tiny, task, sizes=[size]), quiet(tiny, task, sizes=[size]))
    assert_grid_is_mteb(quiet(tiny, task, sizes=[size]), tiny, make_task, [size])


def test_a_benchmark_of_many_types(tiny: SentenceTransformer) -> None:
    sizes = random_sizes(tiny)
    grid = quiet(tiny, labels.benchmark(), sizes=sizes)
    assert grid.tasks == [task.metadata.name for task in labels.benchmark().tasks]
    for task in labels.benchmark().tasks:
        assert_grid_is_mteb(grid.at(tasks=task.metadata.name), tiny, type(task), sizes)


@pytest.mark.slow
def test_data_that_is_loaded_already_is_used_and_left_as_it_is(tiny: SentenceTransformer) -> None:
    for make_task in (search.LocalReranking, labels.BinaryClassification):
        task = make_task()
        task.load_data()
        grid = quiet(tiny, task, sizes=[Size(2, 8)])
        assert task.data_loaded
        assert same(grid, quiet(tiny, task, sizes=[Size(2, 8)]))
        assert_grid_is_mteb(grid, tiny, make_task, [Size(2, 8)])
