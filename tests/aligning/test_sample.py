"""The texts that readouts are fitted on: a sample, with prompts as `encode` has them, without near copies."""

from __future__ import annotations

import copy
import sys
import warnings
from io import StringIO
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import DataWarning, align, truncate
from st_matryoshka2d.aligning import sample as module
from st_matryoshka2d.aligning.sample import Gathered, Text, different, drawn, gather, parts_of, without_copies
from st_matryoshka2d.encoding import progress
from st_matryoshka2d.model.layers import Layers
from st_matryoshka2d.model.pipeline import Pipeline
from tests.support.declared import declare_layers
from tests.support.families import WORDS
from tests.support.pipelines import TEXTS, require_same_rows, routed


def sampled(model: SentenceTransformer, texts: list[str], cost: float = 1.0, most: int = 20_000) -> tuple[list[Text], int]:
    return module.drawn(parts_of(model, texts, None, None), most, 4 * 4 * 32, cost)


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


@pytest.mark.usefixtures("more_than_20_are_many")
def test_shows_progress_now_and_then_in_a_log(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SELDOM", 0)
    monkeypatch.setattr(sys, "stderr", log := StringIO())
    align(tiny, TEXTS, steps=2)
    assert "Embedding texts: 100%" in log.getvalue()


def drawn_texts(
    model: SentenceTransformer, texts: list[str], cost: float = 1.0, most: int = 20_000
) -> tuple[list[str], int]:
    sample, total = sampled(model, texts, cost, most)
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


def test_of_many_texts_as_many_are_drawn_as_cost_one_pass(tiny: SentenceTransformer) -> None:
    assert [len(drawn_texts(tiny, MANY, cost)[0]) for cost in (1.0, 1.25, 2.0, 4.0)] == [5000, 4000, 2500, 2000]


@pytest.mark.parametrize(
    ("depth", "again"),
    [
        # Layers of each depth that are not the first ones of the whole model, up to which one pass
        # serves all.
        (6, [0, 1, 2, 2, 3]),
        (12, [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]),
    ],
)
def test_the_cost_of_all_depths_is_counted_in_passes(depth: int, again: list[int]) -> None:
    assert Layers(depth, "ends").passes() == pytest.approx(1 + sum(again) / depth)
    assert Layers(depth, "first").passes() == 1


def test_embeddings_are_those_of_the_cut_at_each_depth(tiny: SentenceTransformer) -> None:
    declare_layers(tiny.config, {1: [1], 2: [1, 4], 3: [1, 3, 4]})
    texts = [f"{one} {other} {third}" for one, other, third in zip(WORDS, WORDS[3:], WORDS[7:], strict=False)]
    kept = gather(Pipeline.of(tiny), sampled(tiny, texts)[0], 4, True)[""]
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


PROMPTS = {"query": "the old ", "document": "a new "}


QUERIES, DOCUMENTS = TEXTS[:20], TEXTS[15:35]  # some texts are both


@pytest.fixture
def prompted(tiny: SentenceTransformer) -> SentenceTransformer:
    tiny.prompts = dict(PROMPTS)
    return tiny


def written(model: SentenceTransformer, prompt: str, texts: list[str], *more: str, **kwargs: Any) -> SentenceTransformer:
    """Align a model without prompts with texts that have one in front."""
    bare = copy.deepcopy(model)
    bare.prompts, bare.default_prompt_name = {}, None
    return align(bare, [*(prompt + text for text in texts), *more], **kwargs)


def require_equal(found: SentenceTransformer, expected: SentenceTransformer) -> None:
    states = found.state_dict(), expected.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[1].items():
        assert torch.allclose(states[0][name], tensor, atol=1e-5), name


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        ({"prompt": "under the tree "}, "under the tree "),
        ({"prompt_name": "document"}, "a new "),
        ({}, "the old "),  # the default
        ({"prompt": ""}, ""),
        ({"prompt": "under the tree ", "prompt_name": "document"}, "under the tree "),
        ({"prompt": "", "prompt_name": "unknown"}, ""),
    ],
    ids=str,
)
def test_a_prompt_is_put_in_front(given: dict[str, str], prompt: str, prompted: SentenceTransformer) -> None:
    """Which one is that of `encode` with the same keywords."""
    prompted.default_prompt_name = "query"
    by_hand = prompted.encode([prompt + text for text in TEXTS], prompt="")
    np.testing.assert_allclose(prompted.encode(TEXTS, **given), by_hand, atol=1e-6)
    require_equal(align(prompted, TEXTS, steps=3, **given), written(prompted, prompt, TEXTS, steps=3))


def test_texts_of_a_dict_get_the_prompt_of_their_key(prompted: SentenceTransformer) -> None:
    """Also those that are in both; a sample is drawn as from one list."""
    prompted.default_prompt_name = "query"
    found = align(prompted, {"query": iter([*QUERIES, QUERIES[3]]), "document": DOCUMENTS}, steps=3)
    expected = written(prompted, "the old ", QUERIES, *("a new " + text for text in DOCUMENTS), steps=3)
    require_equal(found, expected)


@pytest.mark.parametrize("given", [{"prompt": "the old red "}, {"prompt_name": "query"}, {}], ids=str)
def test_a_prompt_may_be_left_out_of_pooling(
    given: dict[str, str], prompted: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompted.set_pooling_include_prompt(False)
    prompted.default_prompt_name = "document"
    monkeypatch.setattr(module, "different", lambda rows: torch.ones(len(rows), dtype=torch.bool))
    parts = parts_of(prompted, TEXTS, *map(given.get, ["prompt", "prompt_name"]))
    [route] = gather(Pipeline.of(prompted), drawn(parts, 100, 1)[0], 32, True).values()
    cuts = [truncate(prompted, num_layers=depth).encode(TEXTS, convert_to_tensor=True, **given) for depth in (1, 2, 3, 4)]
    require_same_rows(route.states, torch.stack(cuts, 1))
    prompt = given.get("prompt") or prompted.prompts[given.get("prompt_name", "document")]
    other = prompted.encode([prompt + text for text in TEXTS], prompt="", convert_to_tensor=True)
    assert torch.cdist(route.whole, other).min() > 0.01, "the pooling makes a difference"


def test_each_route_gets_the_prompts(prompted: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "different", lambda rows: torch.ones(len(rows), dtype=torch.bool))
    model = routed(prompted, shared=False)
    model.prompts = dict(PROMPTS)
    texts, _ = drawn(parts_of(model, {"document": TEXTS}, None, None), 100, 1)
    for task, route in gather(Pipeline.of(model), texts, 32, True).items():
        expected = truncate(model, num_layers=2).encode(
            TEXTS, task=task, prompt_name="document", normalize_embeddings=True, convert_to_tensor=True
        )
        require_same_rows(torch.nn.functional.normalize(route.at(2), dim=1), expected)


def test_warnings_name_the_part(prompted: SentenceTransformer) -> None:
    with pytest.warns(DataWarning, match=r"texts\['document'\]: 1 of 41 are empty") as found:
        align(prompted, {"query": QUERIES, "document": [*TEXTS, ""]}, steps=0)
    assert {warning.filename for warning in found if "empty" in str(warning.message)} == {__file__}


def test_tells_of_prompts_once(tiny: SentenceTransformer) -> None:
    tiny.prompts = {"query": "query: ", "document": "passage: ", "other": "title: "}
    with pytest.warns(DataWarning, match="prompt_name='query'") as found:
        align(tiny, TEXTS, steps=0)
    [told] = [warning for warning in found if "prompts" in str(warning.message)]
    assert told.filename == __file__


@pytest.mark.parametrize(
    "how", ["empty prompts", "default prompt", "prompts in the texts", "prompt", "prompt_name", "no prompt", "dict"]
)
def test_says_nothing_where_all_is_well(how: str, tiny: SentenceTransformer) -> None:
    tiny.prompts = {"query": "", "document": " "} if how == "empty prompts" else {"query": "query: ", "document": ""}
    tiny.default_prompt_name = "query" if how == "default prompt" else None
    given: dict[str, Any] = {
        "prompt": {"prompt": "title: "},
        "prompt_name": {"prompt_name": "query"},
        "no prompt": {"prompt": ""},
    }.get(how, {})
    texts: Any = {"prompts in the texts": [*TEXTS, "query: a cat"], "dict": {"document": TEXTS}}.get(how, TEXTS)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The model declares prompts")
        align(tiny, texts, steps=0, **given)
