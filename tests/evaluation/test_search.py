"""Texts of queries and documents match mteb's."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset

from st_matryoshka2d.evaluation.search import _document_texts, _query_texts

TURNS = [{"role": "user", "content": "a cat?"}, {"role": "assistant", "content": "a kitten."}]


@pytest.mark.parametrize(
    ("columns", "texts"),
    [
        ({"text": ["a cat", "a dog"]}, ["a cat", "a dog"]),
        ({"text": ["a cat", "a dog"], "instruction": ["find it", None]}, ["a cat find it", "a dog"]),
        ({"text": [TURNS]}, ["user: a cat?; assistant: a kitten."]),
        ({"text": [["a cat?", "a kitten."]]}, ["a cat?; a kitten."]),
        ({"text": [TURNS], "instruction": ["find it"]}, ["find it user: a cat?; assistant: a kitten."]),
        ({"text": []}, []),
    ],
)
def test_a_query_its_instruction_and_the_turns_of_a_conversation_are_one_text(
    columns: dict[str, Any], texts: list[str]
) -> None:
    assert _query_texts(Dataset.from_dict(columns)) == texts


def test_a_title_stands_before_its_text() -> None:
    assert _document_texts({"text": ["sleeps ", "sat"], "title": ["a cat", ""]}) == ["a cat sleeps", "sat"]
    assert _document_texts({"text": [" sat "]}) == ["sat"]
