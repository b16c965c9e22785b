"""Texts and tokenizers that would fail inside a library are refused early, with their place and advice."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, benchmark_latency, classification_task, encode_sizes, evaluate, retrieval_task, sts_task
from tests.support.sts import LocalSTS, quiet

BROKEN = "a \ud83d cat"
LABELLED = {"text": ["a", "b"], "label": ["x", "y"]}

PLACES: dict[str, tuple[Any, str]] = {
    "pairs": (lambda: sts_task({"sentence1": ["a", "b"], "sentence2": ["c", BROKEN], "score": [1, 2]}), "row 1, sentence2"),
    "corpus": (lambda: retrieval_task({"d1": "a", "d2": BROKEN}, {"q": "q"}, {"q": ["d1"]}), "corpus, id 'd2', text"),
    "title": (
        lambda: retrieval_task({"d": {"title": BROKEN, "text": "a"}}, {"q": "q"}, {"q": ["d"]}),
        "corpus, id 'd', title",
    ),
    "queries": (lambda: retrieval_task({"d": "a"}, {"q": BROKEN}, {"q": ["d"]}), "queries, id 'q', text"),
    "id": (lambda: retrieval_task({BROKEN: "a"}, {"q": "q"}, {"q": [BROKEN]}), "corpus, row 0, id"),
    "text": (lambda: classification_task({**LABELLED, "text": ["a", BROKEN]}, LABELLED), "train, row 1, text"),
    "label": (lambda: classification_task(LABELLED, {**LABELLED, "label": ["x", BROKEN]}), "test, row 1, label"),
}


@pytest.mark.parametrize("what", PLACES)
def test_own_data_with_lone_surrogate_is_refused(what: str) -> None:
    make, place = PLACES[what]
    with pytest.raises(ValueError, match=f"{place}: character 2 of the text .* is half of a surrogate pair"):
        make()


def test_encode_sizes_refuses_lone_surrogate(tiny: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match=r"texts\[1\]: character 2 of the text 'a .ud83d cat'"):
        encode_sizes(tiny, ["a cat", BROKEN], [Size(1, 8)])
    assert len(encode_sizes(tiny, ["a \U0001f408 cat"], [Size(1, 8)])) == 1, "a whole pair is a character"


def test_task_with_lone_surrogate_is_refused(tiny: SentenceTransformer) -> None:
    class Lists(LocalSTS):
        """Data in lists: Arrow itself would refuse the text."""

        def load_data(self, *args: Any, **kwargs: Any) -> None:
            super().load_data()
            self.dataset["one"]["test"] = Dataset.from_dict({"sentence1": [BROKEN]})  # type: ignore[index]

    with pytest.raises(ValueError, match=r"STS13: character 2 of the text 'a .ud83d cat' is half of a surrogate pair"):
        quiet(tiny, Lists(), sizes=[Size(1, 8)])


def test_tokenizer_without_padding_is_refused(tiny: SentenceTransformer) -> None:
    tiny.tokenizer.pad_token = None
    told = r"no padding token.*model\.tokenizer\.pad_token = model\.tokenizer\.eos_token"
    with pytest.raises(ValueError, match=told):
        encode_sizes(tiny, ["a cat", "a dog ran"], [Size(1, 8)])
    with pytest.raises(ValueError, match=told):
        evaluate(tiny, LocalSTS(), sizes=[Size(1, 8)], show_progress_bar=False)
    with pytest.raises(ValueError, match=told):
        benchmark_latency(tiny, 1, rounds=1)
    tiny.tokenizer.pad_token = "[SEP]"
    assert len(encode_sizes(tiny, ["a cat", "a dog ran"], [Size(1, 8)])[Size(1, 8)]) == 2
