"""Reading the texts of an alignment: once, in chunks; all for the sums, a sample for the refinement."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import StringIO
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import align
from st_matryoshka2d.aligning import gather as module
from tests.support.pipelines import TEXTS


def test_texts_are_read_in_chunks(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 7)
    asked: list[int] = []
    encoded: list[int] = []
    add = module.Gathered.add

    def counted(*given: Any) -> None:
        encoded.append(len(asked))
        add(*given)

    monkeypatch.setattr(module.Gathered, "add", counted)

    def stream() -> Iterator[str]:
        for number, text in enumerate(TEXTS):
            asked.append(number)
            yield text

    align(tiny, stream(), steps=0)
    assert encoded == [7, 14, 21, 28, 35, 40], "no text is asked for before there is room"


def test_sums_do_not_depend_on_the_chunks() -> None:
    embeddings = torch.randn(100, 4, 32, generator=torch.Generator().manual_seed(0))
    found = []
    for size in (100, 9):
        made = module.Gathered(4, 32)
        draw = torch.Generator().manual_seed(0)
        for chunk in embeddings.split(size):
            made.add(chunk, True, draw)
        found.append([fitted + held_out for fitted, held_out in zip(made.fitted, made.held_out, strict=True)])
    for left, right in zip(*found, strict=True):
        assert left.count == right.count == 100
        for name in ("x", "z", "xx", "xz"):
            assert torch.allclose(getattr(left, name), getattr(right, name), atol=1e-4)


def test_refinement_samples_from_many_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module.Gathered(4, 32)
    monkeypatch.setattr(module, "_SAMPLE", 1000)
    draw = torch.Generator().manual_seed(0)
    given = torch.randn(3000, 4, 32, generator=torch.Generator().manual_seed(1))
    for chunk in given.split(700):
        made.add(chunk, False, draw)
    assert made.sample.shape == (1000, 4, 32)
    assert sum(sums.count for sums in (made.fitted[0], made.held_out[0])) == 3000
    places = [int((given[:, 0] == row).all(1).nonzero()) for row in made.sample[:, 0]]
    assert places == sorted(set(places)), "each once"
    assert np.mean(places) == pytest.approx(1500, abs=100), "from all of them alike"
    assert torch.equal(made.sample, given[places]), "all depths of one text together"


def test_the_batch_size_changes_nothing(tiny: SentenceTransformer) -> None:
    made, other = (align(tiny, TEXTS, steps=0, batch_size=size).state_dict() for size in (32, 7))
    for name in ("2.linear.weight", "2.shallower.1.weight", "2.shallower.3.weight"):
        assert torch.allclose(made[name] @ made[name].T, other[name] @ other[name].T, atol=1e-3), name


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("show", [None, True, False])
def test_shows_progress_on_a_terminal_or_on_request(
    show: bool | None, terminal: bool, tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal() if terminal else StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    align(tiny, TEXTS, steps=2, show_progress_bar=show)
    told = screen.getvalue()
    is_shown = show or (show is None and terminal)
    assert bool(told) == is_shown
    assert ("Embedding texts: 100%" in told, "Refining readouts: 100%" in told) == (is_shown, is_shown)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([*TEXTS, TEXTS[0], TEXTS[0]], "42/42"),  # rows that are left out are done too
        ({"query": TEXTS[:20], "document": np.array(TEXTS)}, "60/60"),
        (iter(TEXTS), "40 texts"),
        ({"query": TEXTS[:20], "document": iter(TEXTS)}, "60 texts"),
    ],
    ids=str,
)
def test_progress_has_a_total_if_it_is_known(
    texts: Any, expected: str, tiny: SentenceTransformer, capfd: pytest.CaptureFixture[str]
) -> None:
    align(tiny, texts, steps=0, show_progress_bar=True)
    last = capfd.readouterr().err.strip().rpartition("\r")[2]
    assert f" {expected} [" in last
