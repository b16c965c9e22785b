"""Progress bars: one for texts and one for cells; the time of cells excludes the time of texts."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any, cast

import pytest
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from st_matryoshka2d import Size, evaluate
from st_matryoshka2d.evaluation import embeddings, run, search
from tests.support.quick import quick
from tests.support.search import FewResults
from tests.support.sts import LocalSTS

SIZES = [Size(layers, dim) for layers in (1, 2, 4) for dim in (8, 32)]


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
    for module in (embeddings, run, search):
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
    evaluate(tiny, LocalSTS(), sizes=SIZES, cache=tmp_path if cache else None)
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
    evaluate(tiny, LocalSTS(), sizes=SIZES, batch_size=5)
    first = bars[1]
    assert first.steps[:2] == [5, 10]


def test_documents_are_counted_one_by_one(
    tiny: SentenceTransformer, bars: list[Bar], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "_BATCHES_PER_STEP", 1)
    evaluate(tiny, FewResults(), sizes=SIZES[:1], batch_size=2, corpus_chunk_size=7)
    documents = [bar for bar in bars if bar.name == "Documents"]
    assert documents
    for bar in documents:
        assert bar.n == bar.total
        assert bar.steps[:3] == [2, 4, 6]
