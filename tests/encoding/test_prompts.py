"""Aligning a model that declares prompts with texts that have none."""

from __future__ import annotations

import warnings

import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import DataWarning, align
from tests.support.pipelines import TEXTS


def test_tells_of_prompts_once(tiny: SentenceTransformer) -> None:
    tiny.prompts = {"query": "query: ", "document": "passage: ", "other": "title: "}
    with pytest.warns(DataWarning, match="The model declares prompts") as found:
        align(tiny, TEXTS, steps=0)
    [one] = [warning for warning in found if "prompts" in str(warning.message)]
    assert str(one.message) == (
        "The model declares prompts ('query': 'query: ', 'document': 'passage: ', ...), but the texts have none. Pass the "
        "texts as they will be embedded: [model.prompts['query'] + text for text in texts]."
    )
    assert one.filename == __file__


@pytest.mark.parametrize("how", ["empty prompts", "default prompt", "prompts in the texts"])
def test_says_nothing_where_all_is_well(how: str, tiny: SentenceTransformer) -> None:
    tiny.prompts = {"query": "", "document": " "} if how == "empty prompts" else {"query": "query: ", "document": ""}
    tiny.default_prompt_name = "query" if how == "default prompt" else None
    texts = [*TEXTS, "query: a cat"] if how == "prompts in the texts" else TEXTS
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The model declares prompts")
        align(tiny, texts, steps=0)
