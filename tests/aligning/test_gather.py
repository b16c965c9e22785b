"""The sample of the texts that readouts are fitted on, and its embeddings."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import align
from st_matryoshka2d.aligning.gather import gather
from st_matryoshka2d.aligning.parts import parts_of
from tests.support.pipelines import TEXTS, routed


def test_the_batch_size_changes_nothing(tiny: SentenceTransformer) -> None:
    made, other = (align(tiny, TEXTS, steps=0, batch_size=size).state_dict() for size in (32, 7))
    for name in ("2.linear.weight", "2.shallower.1.weight", "2.shallower.3.weight"):
        assert torch.allclose(made[name] @ made[name].T, other[name] @ other[name].T, atol=1e-3), name


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("more_than_20_are_many")
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


def test_progress_counts_the_texts_and_the_copies_of_long_ones(
    tiny: SentenceTransformer, capfd: pytest.CaptureFixture[str]
) -> None:
    """For each route of a model."""
    model = routed(tiny, shared=False)
    gather(model, parts_of(model, iter([*TEXTS, TEXTS[0]]), None, None), 32, False)
    done = 2 * (len(TEXTS) + sum(len(text.split()) >= 6 for text in TEXTS))
    assert f" {done}/{done} [" in capfd.readouterr().err.strip().rpartition("\r")[2]
