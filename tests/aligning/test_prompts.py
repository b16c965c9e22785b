"""Aligning with prompts: as if they were written in front of the texts, and as `encode` pools them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import DataWarning, align, truncate
from st_matryoshka2d.aligning import gather as module
from st_matryoshka2d.aligning.gather import drawn, gather, parts_of
from tests.support.pipelines import TEXTS, require_same_rows, routed

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


def test_the_same_text_with_the_same_prompt_is_one(prompted: SentenceTransformer) -> None:
    prompted.prompts["other"] = "the old "
    found = align(prompted, {"query": TEXTS, "other": TEXTS, "document": []}, steps=0)
    require_equal(found, align(prompted, TEXTS, prompt_name="query", steps=0))


@pytest.mark.parametrize("given", [{"prompt": "the old red "}, {"prompt_name": "query"}, {}], ids=str)
def test_a_prompt_may_be_left_out_of_pooling(
    given: dict[str, str], prompted: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompted.set_pooling_include_prompt(False)
    prompted.default_prompt_name = "document"
    monkeypatch.setattr(module, "different", lambda rows: torch.ones(len(rows), dtype=torch.bool))
    parts = parts_of(prompted, TEXTS, *map(given.get, ["prompt", "prompt_name"]))
    [route] = gather(prompted, drawn(parts, 100, 1)[0], 32, True).values()
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
    for task, route in gather(model, texts, 32, True).items():
        expected = truncate(model, num_layers=2).encode(
            TEXTS, task=task, prompt_name="document", normalize_embeddings=True, convert_to_tensor=True
        )
        require_same_rows(torch.nn.functional.normalize(route.at(2), dim=1), expected)


def unread() -> Iterator[str]:
    pytest.fail("nothing is read")
    yield ""


@pytest.mark.parametrize(
    ("texts", "given", "words"),
    [
        (unread(), {"prompt_name": "passage"}, r"no prompt 'passage', only \['query', 'document'\]"),
        ({"query": unread(), "passage": unread()}, {}, r"but 'passage' is none of \['query', 'document'\]"),
        ({"query": unread()}, {"prompt_name": "query"}, "neither `prompt` nor `prompt_name`.* got .*prompt_name='query'"),
        ({"query": unread()}, {"prompt": ""}, "neither `prompt` nor `prompt_name`.* got prompt=''"),
        ({}, {}, "at least 3 different texts.*got 0"),
    ],
    ids=["unknown name", "unknown key", "key and name", "key and prompt", "no texts"],
)
def test_refuses_other_prompts_before_any_work(
    texts: Any, given: dict[str, str], words: str, prompted: SentenceTransformer
) -> None:
    with pytest.raises(ValueError, match=words):
        align(prompted, texts, **given)


def test_errors_and_warnings_name_the_part(prompted: SentenceTransformer) -> None:
    with pytest.warns(DataWarning, match=r"texts\['document'\]: 1 of 41 rows have an empty cell") as found:
        align(prompted, {"query": QUERIES, "document": [*TEXTS, ""]}, steps=0)
    assert {warning.filename for warning in found if "rows" in str(warning.message)} == {__file__}
    with pytest.raises(TypeError, match=r"texts\['document'\]\[1\] is 3"):
        align(prompted, {"query": QUERIES, "document": ["a cat", 3]})  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"texts\['document'\] must be a list of texts, got one string"):
        align(prompted, {"query": unread(), "document": "a cat"})


def test_tells_of_prompts_once(tiny: SentenceTransformer) -> None:
    tiny.prompts = {"query": "query: ", "document": "passage: ", "other": "title: "}
    with pytest.warns(DataWarning, match="The model declares prompts") as found:
        align(tiny, TEXTS, steps=0)
    [one] = [warning for warning in found if "prompts" in str(warning.message)]
    assert "{'query': [...], 'document': [...]}" in str(one.message)
    assert one.filename == __file__


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
