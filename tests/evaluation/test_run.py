"""The order of sizes, other tasks, repeated runs and several processes change no score; progress is shown."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from st_matryoshka2d import GridResult, Size, evaluate
from st_matryoshka2d.evaluation import embeddings, run
from st_matryoshka2d.evaluation import search as evaluation_search
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


SIX = [Size(layers, dim) for layers in (1, 2, 4) for dim in (8, 32)]


class Bar(tqdm):  # type: ignore[type-arg]
    """A bar that records its output."""

    made: list[Bar]

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings, mininterval=0, file=io.StringIO())
        self.name, self.elapsed = str(settings["desc"]), 0.0
        self.steps: list[int] = []
        self.made.append(self)

    def update(self, n: float | None = 1) -> bool | None:
        shown = super().update(n)
        self.steps.append(int(self.n))
        self.elapsed = self.format_dict["elapsed"]
        return shown


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Bar]:
    monkeypatch.setattr(Bar, "made", [], raising=False)
    for module in (embeddings, run, evaluation_search):
        monkeypatch.setattr(module, "tqdm", Bar)
    return Bar.made


def slow(model: SentenceTransformer, seconds: float) -> None:
    """Make every batch take at least `seconds`."""
    network = cast("Any", model[0]).model
    network.get_input_embeddings().register_forward_pre_hook(lambda *_: time.sleep(seconds))


@pytest.mark.parametrize("cache", quick([False, True], True))
def test_the_time_of_cells_is_without_that_of_texts(
    cache: bool, tiny: SentenceTransformer, bars: list[Bar], tmp_path: Path
) -> None:
    slow(tiny, 0.05)
    start = time.monotonic()
    evaluate(tiny, LocalSTS(), sizes=SIX, cache=tmp_path if cache else None)
    seconds = time.monotonic() - start
    cells, *texts = bars
    assert (cells.name, cells.total, cells.n) == ("Scores", 6, 6)
    assert {bar.name for bar in texts} == {"Texts"}
    assert all(bar.n == bar.total for bar in texts)
    assert cells.elapsed < seconds - 0.05 * len(texts)


def test_the_bar_of_texts_moves_before_all_are_encoded(
    tiny: SentenceTransformer, bars: list[Bar], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "_BATCHES_PER_STEP", 1)
    evaluate(tiny, LocalSTS(), sizes=SIX, batch_size=5)
    first = bars[1]
    assert first.steps[:2] == [5, 10]


def test_documents_are_counted_one_by_one(
    tiny: SentenceTransformer, bars: list[Bar], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "_BATCHES_PER_STEP", 1)
    evaluate(tiny, search.FewResults(), sizes=SIX[:1], batch_size=2, corpus_chunk_size=7)
    documents = [bar for bar in bars if bar.name == "Documents"]
    assert documents
    for bar in documents:
        assert bar.n == bar.total
        assert bar.steps[:3] == [2, 4, 6]
