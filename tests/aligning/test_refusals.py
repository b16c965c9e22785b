"""What `align` refuses, before a text is read where that is possible."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router

from st_matryoshka2d import align, truncate
from tests.support.pipelines import TEXTS, routed, with_one_river, without_words_for

Call = Callable[[SentenceTransformer], object]
ROWS = np.zeros((40, 24))


def aligned(texts: Any = TEXTS, **given: Any) -> Call:
    """Align a model that declares prompts."""

    def call(model: SentenceTransformer) -> None:
        model.prompts = {"query": "the old ", "document": "a new "}
        align(model, texts() if callable(texts) else texts, **given)

    return call


def unread() -> Iterator[str]:
    pytest.fail("a text is read")
    yield ""


def before_a_dense(model: SentenceTransformer) -> None:
    router = Router.for_query_document(list(model.children()), list(model.children()))
    align(SentenceTransformer(modules=[router, Dense(32, 32), Normalize()], device="cpu"), TEXTS)


def with_nan(model: SentenceTransformer) -> None:
    without_words_for(model, "river")
    align(model, {"document": with_one_river(7), "query": ["a road", "the road", "new road"]})


def mapped_twice(model: SentenceTransformer) -> None:
    other = copy.deepcopy(model)
    align(align(model, TEXTS, into=other), TEXTS, into=other)


def narrowed(model: SentenceTransformer) -> SentenceTransformer:
    return truncate(model, dim=8)


REFUSED: list[tuple[Call, type[Exception], str]] = [
    (aligned(TEXTS[:2] * 2), ValueError, "2"),
    (aligned({}), ValueError, "0"),
    (aligned([*TEXTS, 3]), TypeError, r"texts\[40\] is 3"),
    (aligned(["red", "\ud800", "blue"]), ValueError, r"texts\[1\].* 0"),
    (aligned({"query": TEXTS, "document": ["a cat", 3]}), TypeError, r"texts\['document'\]\[1\] is 3"),
    (aligned({"query": unread(), "document": "a cat"}), TypeError, r"texts\['document'\]"),
    *((aligned(unread, steps=steps), (TypeError, ValueError), "steps") for steps in (-1, 2.0, True, "3")),
    (aligned(unread, sizes=["5L-8d"]), ValueError, "5 layers"),
    (aligned(unread, rotation="none"), ValueError, "'none'"),
    (aligned(unread, prompt_name="passage"), ValueError, "'passage'.*'query', 'document'"),
    (aligned({"query": unread(), "passage": unread()}), ValueError, "'passage'.*'query', 'document'"),
    (aligned({"query": unread()}, prompt_name="query"), ValueError, "prompt_name='query'"),
    (aligned({"query": unread()}, prompt=""), ValueError, "prompt=''"),
    (lambda model: align("a model", TEXTS), TypeError, "str"),  # type: ignore[arg-type]
    (lambda model: align(narrowed(model), TEXTS), ValueError, "truncate_dim=8"),
    (before_a_dense, ValueError, "'Dense', 'Normalize'"),
    (with_nan, ValueError, r"'the red river', texts\['document'\]\[7\], is not finite"),
    # Into another space.
    (lambda model: align(narrowed(model), TEXTS, into=ROWS), ValueError, "truncate_dim=8"),
    (lambda model: align(routed(model, shared=True), TEXTS, into=ROWS), ValueError, "Router"),
    (lambda model: align(model, TEXTS, into=narrowed(model)), ValueError, "other space.*truncate_dim=8"),
    (lambda model: align(model, TEXTS, into=routed(model, shared=True)), ValueError, "other space.*Router"),
    (mapped_twice, ValueError, "already"),
    (aligned(into=np.zeros((39, 24))), ValueError, "39"),
    (aligned(into=np.zeros((41, 24))), ValueError, "40"),
    (aligned(into=np.zeros(40)), ValueError, r"\(40,\)"),
    (aligned(into=np.full((40, 24), np.nan)), ValueError, "row 0"),
    (aligned(into={"query": ROWS}), ValueError, "dict"),
    (aligned({"query": TEXTS}, into=ROWS), ValueError, "ndarray"),
    (aligned({"query": TEXTS, "document": TEXTS}, into={"query": ROWS, "document": ROWS[:, :8]}), ValueError, "width"),
    (aligned(into="nowhere"), FileNotFoundError, "nowhere"),
    (aligned(into=ROWS, sizes=["1L-8d"]), ValueError, "sizes="),
    (aligned(into=ROWS, rotation="keep"), ValueError, "rotation="),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_refused(call: Call, error: type[Exception], words: str, tiny: SentenceTransformer) -> None:
    with pytest.raises(error, match=words):
        call(tiny)


def test_a_prompt_that_the_other_model_lacks(tiny: SentenceTransformer) -> None:
    """A note says of which model the message speaks."""
    other = copy.deepcopy(tiny)
    tiny.prompts = {"query": "", "document": "", "title": ""}
    with pytest.raises(ValueError, match="'title'") as caught:
        align(tiny, TEXTS, into=other, prompt_name="title")
    assert caught.value.__notes__ == ["This is about the model of the other space."]
