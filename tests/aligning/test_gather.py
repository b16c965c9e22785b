"""The sample of the texts that readouts are fitted on, and its embeddings."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import BertConfig

from st_matryoshka2d import align, truncate
from st_matryoshka2d.aligning import gather as module
from st_matryoshka2d.aligning.gather import (
    Gathered,
    Text,
    different,
    gather,
    parts_of,
    without_copies,
)
from st_matryoshka2d.model.kept_layers import chosen_layers, declare_layers, passes
from tests.support.families import WORDS
from tests.support.pipelines import TEXTS, require_same_rows, routed


def drawn(model: SentenceTransformer, texts: list[str], cost: float = 1.0, most: int = 20_000) -> tuple[list[Text], int]:
    return module.drawn(parts_of(model, texts, None, None), most, 4 * 4 * 32, cost)


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
    gather(model, drawn(model, [*TEXTS, TEXTS[0]])[0], 32, False)
    done = 2 * (len(TEXTS) + sum(len(text.split()) >= 6 for text in TEXTS))
    assert f" {done}/{done} [" in capfd.readouterr().err.strip().rpartition("\r")[2]


def drawn_texts(
    model: SentenceTransformer, texts: list[str], cost: float = 1.0, most: int = 20_000
) -> tuple[list[str], int]:
    sample, total = drawn(model, texts, cost, most)
    return [text.text for text in sample], total


MANY = [f"text {number}" for number in range(5000)]


def test_a_sample_of_many_texts_has_each_at_most_once(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    found, total = drawn_texts(tiny, [*MANY, *MANY[:100]], most=1200)
    assert total == 5000
    assert len(found) == len(set(found)) == 1200
    assert set(found) < set(MANY)
    places = [int(text.split()[1]) for text in found]
    assert sum(places) / 1200 == pytest.approx(2500, abs=150), "from all of them alike"
    assert drawn_texts(tiny, MANY, most=1200)[0] == found, "and the same each time"
    monkeypatch.setattr(module, "_SAMPLE_BYTES", 1100 * 4 * 4 * 32)
    assert len(drawn_texts(tiny, MANY)[0]) == 1100, "of large models fewer"


def test_every_text_of_few_is_drawn(tiny: SentenceTransformer) -> None:
    assert sorted(drawn_texts(tiny, MANY[:2000], 2.5)[0]) == sorted(MANY[:2000])


def test_of_many_texts_as_many_are_drawn_as_cost_one_pass(tiny: SentenceTransformer) -> None:
    assert [len(drawn_texts(tiny, MANY, cost)[0]) for cost in (1.0, 1.25, 2.0, 4.0)] == [5000, 4000, 2500, 2000]


@pytest.mark.parametrize(
    ("depth", "again"),
    [
        # Layers of each depth that are not the first ones of the whole model, up to which one pass serves all.
        (6, [0, 1, 1, 2, 2]),
        (12, [0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4]),
    ],
)
def test_the_cost_of_all_depths_is_counted_in_passes(depth: int, again: list[int]) -> None:
    config = BertConfig(num_hidden_layers=depth)
    assert passes(config, depth) == 1
    declare_layers(config, chosen_layers("ends", depth))
    assert passes(config, depth) == pytest.approx(1 + sum(again) / depth)


def test_embeddings_are_those_of_the_cut_at_each_depth(tiny: SentenceTransformer) -> None:
    declare_layers(tiny.config, chosen_layers("ends", 4))
    texts = [f"{one} {other} {third}" for one, other, third in zip(WORDS, WORDS[3:], WORDS[7:], strict=False)]
    kept = gather(tiny, drawn(tiny, texts)[0], 4, True)[""]
    cuts = [truncate(tiny, num_layers=depth).encode(texts, convert_to_tensor=True) for depth in (1, 2, 3, 4)]
    require_same_rows(kept.states, torch.stack(cuts, 1))


@pytest.mark.parametrize(
    ("among_4000", "later", "fitted"),
    [(1999, 2, 6000), (1500, 2000, 6000), (1500, 499, 1999), (2001, 0, 6000), (1999, 0, 1999)],
)
def test_near_copies_are_dropped_only_if_few_of_all_texts_are_different(among_4000: int, later: int, fitted: int) -> None:
    """All 6,000 texts count; the first 4,000 tell the median distance."""
    rows = torch.randn(among_4000 + later, 64, generator=torch.Generator().manual_seed(0))
    places = [*(place % among_4000 for place in range(4000)), *range(among_4000, len(rows))]
    places += [0] * (6000 - len(places))
    states = rows[places].unsqueeze(1).expand(-1, 2, -1)
    found = without_copies({"": Gathered(states, (rows, rows))})[""].states
    assert len(found) == fitted
    if fitted < 6000:
        assert torch.equal(found[:, 0], rows)


def test_near_copies_are_closer_than_a_share_of_the_median() -> None:
    rows = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([rows, rows[:6] + 0.1, 5 * rows[:3]])
    distances = [[1 - float(torch.cosine_similarity(one, other, dim=0)) for other in rows] for one in rows]
    median = sorted(distances[i][j] for i in range(39) for j in range(i))[39 * 38 // 4]
    expected = [all(distances[i][j] > 0.2 * median for j in range(i)) for i in range(39)]
    assert different(rows).tolist() == expected
    assert sum(expected) < 36
