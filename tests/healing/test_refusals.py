"""What `heal` refuses, before a text is read where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import DataWarning, align, heal, truncate
from tests.support.pipelines import TEXTS, routed

Call = Callable[[SentenceTransformer], object]


def healed(texts: Any = TEXTS, size: Any = "2L-8d", **given: Any) -> Call:
    """Heal a model that declares prompts."""

    def call(model: SentenceTransformer) -> None:
        model.prompts = {"query": "the old ", "document": "a new "}
        heal(model, texts() if callable(texts) else texts, size, **given)

    return call


def unread() -> Iterator[str]:
    pytest.fail("a text is read")
    yield ""


def with_nan(model: SentenceTransformer) -> None:
    with torch.no_grad():
        model.get_parameter("0.model.encoder.layer.3.output.dense.bias")[0] = torch.nan
    heal(model, TEXTS, num_layers=2)


def with_other_layers(model: SentenceTransformer) -> None:
    heal(align(model, TEXTS, layers="first", steps=0), TEXTS, layers=[1, 4])


REFUSED: list[tuple[Call, type[Exception], str]] = [
    (healed(TEXTS[:2] * 2), ValueError, "at least 3 different texts.* 2"),
    (healed([]), ValueError, "at least 3 different texts.* 0"),
    (healed([*TEXTS, 3]), TypeError, r"texts\[40\] is 3"),
    (healed("a cat"), TypeError, "got one string"),
    (healed(unread, None), ValueError, "number of layers"),
    (healed(unread, None, dim=8), ValueError, "number of layers"),
    (healed(unread, num_layers=2), ValueError, "not both"),
    (healed(unread, "5L-8d"), ValueError, "4 layers"),
    (healed(unread, "2L-64d"), ValueError, "32 dim"),
    (healed(unread, "0L-32d"), ValueError, "num_layers=0"),
    (healed(unread, layers=[1, 2, 3]), ValueError, "lists 3 layers"),
    (healed(unread, layers=[4, 1]), ValueError, "ascending"),
    (healed(unread, None, layers="last"), ValueError, "'last'"),
    *((healed(unread, steps=steps), (TypeError, ValueError), "steps") for steps in (-1, 2.0, True, "3")),
    (healed(unread, prompt_name="passage"), ValueError, "'passage'.*'query', 'document'"),
    (healed({"query": unread(), "passage": unread()}), ValueError, "'passage'"),
    (healed({"query": unread()}, prompt_name="query"), ValueError, "prompt_name='query'"),
    (lambda model: heal("a model", TEXTS, "2L-8d"), TypeError, "str"),  # type: ignore[arg-type]
    (lambda model: heal(truncate(model, dim=8), TEXTS, num_layers=2), ValueError, "truncate_dim=8.*dim=8"),
    (lambda model: heal(routed(model, shared=True), TEXTS, num_layers=2), ValueError, "Router"),
    (with_nan, ValueError, "finite"),
    (with_other_layers, ValueError, "Leave `layers` out"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_refused(call: Call, error: type[Exception], words: str, tiny: SentenceTransformer) -> None:
    with pytest.raises(error, match=words):
        call(tiny)


def test_few_texts_are_told(tiny: SentenceTransformer) -> None:
    with pytest.warns(DataWarning, match="different texts or pairs are few.* was 0.* and is [01]") as told:
        heal(tiny, TEXTS, num_layers=2)
    assert [warning.filename for warning in told] == [__file__]
