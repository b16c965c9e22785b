"""What mteb does within something else, and we do as well: each test fails if a release does it otherwise."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import mteb
import pytest
from datasets import Dataset
from mteb._create_dataloaders import _retrieval_texts
from mteb.mocks import mock_tasks
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from mteb.types import PromptType
from sentence_transformers import SentenceTransformer

from st_matryoshka2d._hosts.mteb import quiet_mteb
from st_matryoshka2d._hosts.mteb_texts import document_texts, query_texts

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
    assert query_texts(Dataset.from_dict(columns)) == texts
    # turns without roles, which its loader reads and this does not
    if columns["text"] != [["a cat?", "a kitten."]]:
        assert list(_retrieval_texts(Dataset.from_dict(columns), PromptType.query)) == texts


@pytest.mark.parametrize("columns", [{"text": ["sleeps ", "sat"], "title": ["a cat", ""]}, {"text": [" sat "]}])
def test_a_title_stands_before_its_text(columns: dict[str, list[str]]) -> None:
    documents = Dataset.from_dict({"id": list(map(str, range(len(columns["text"])))), **columns})
    assert document_texts(columns) == list(_retrieval_texts(documents, PromptType.document))
    assert document_texts(columns)[0] in ("a cat sleeps", "sat")


def test_only_errors_of_mteb_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("mteb.evaluate")
    with caplog.at_level(logging.INFO, logger="mteb"), quiet_mteb():
        logger.warning("a warning")
        logger.error("an error")
    assert [record.getMessage() for record in caplog.records] == ["an error"]


@pytest.mark.parametrize(
    "make_task", [mock_tasks.MockMultilingualSTSTask, mock_tasks.MockMultilingualPairClassificationTask]
)
def test_the_first_texts_of_all_pairs_are_embedded_before_the_second(
    tiny: SentenceTransformer, make_task: Callable[[], Any]
) -> None:
    calls: dict[tuple[str, str], list[list[str]]] = defaultdict(list)

    class Recorder(SentenceTransformerEncoderWrapper):
        def encode(self, inputs: Any, **kwargs: Any) -> Any:
            calls[kwargs["hf_split"], kwargs["hf_subset"]].append(list(inputs.dataset["text"]))
            return super().encode(inputs, **kwargs)

    mteb.evaluate(Recorder(tiny), make_task(), cache=None, co2_tracker=False, show_progress_bar=False)
    task = make_task()
    task.load_data()
    assert len(calls) > 1
    for (split, subset), sides in calls.items():
        pairs = task.dataset[subset][split]
        assert sides == [list(pairs[name]) for name in ("sentence1", "sentence2")]
