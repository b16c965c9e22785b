"""`token_rows` loses no token and exceeds no length, for data sets in memory, streams and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from datasets import Dataset, IterableDataset, load_dataset
from transformers import PreTrainedTokenizerFast

from st_matryoshka2d.pretraining import SMAEDataCollator, token_rows
from tests.support import tokenizers as tokenizers_support
from tests.support.tokenizers import KINDS

pytestmark = pytest.mark.filterwarnings("ignore:.* rows have an empty cell")

TEXTS = ["the fox", "", *tokenizers_support.texts(60, seed=5), "", "encoders and decoders"]


def _stream(texts: list[str]) -> IterableDataset:
    def rows() -> Iterator[dict[str, str]]:
        yield from ({"text": text} for text in texts)

    return IterableDataset.from_generator(rows)  # its columns are unknown


Make = Callable[[list[str]], Dataset | IterableDataset]


KIND_OF_DATASET: dict[str, Make] = {
    "in memory": lambda texts: Dataset.from_dict({"text": texts, "label": [0] * len(texts)}),
    "stream": _stream,
    "stream with known columns": lambda texts: Dataset.from_dict({"text": texts}).to_iterable_dataset(num_shards=2),
    "numpy": lambda texts: Dataset.from_dict({"text": texts}).with_format("numpy"),
}


def _ids(rows: Dataset | IterableDataset) -> list[list[int]]:
    return [list(row["input_ids"]) for row in rows]


@pytest.fixture(scope="module")
def wordpiece() -> PreTrainedTokenizerFast:
    return tokenizers_support.wordpiece()


@pytest.mark.parametrize("make", KIND_OF_DATASET.values(), ids=KIND_OF_DATASET)
class TestEveryKindOfDataset:
    def test_a_row_is_a_text_as_the_tokenizer_writes_it(self, make: Make, wordpiece: PreTrainedTokenizerFast) -> None:
        rows = token_rows(make(TEXTS), wordpiece)
        assert isinstance(rows, type(make(TEXTS)))
        assert _ids(rows) == [wordpiece(text)["input_ids"] for text in TEXTS if text]
        assert set(next(iter(rows))) == {"input_ids"}

    @pytest.mark.parametrize("pack_to", [3, 64])
    def test_packing_loses_no_token(self, make: Make, wordpiece: PreTrainedTokenizerFast, pack_to: int) -> None:
        rows = _ids(token_rows(make(TEXTS), wordpiece, pack_to=pack_to))
        first, last = wordpiece.cls_token_id, wordpiece.sep_token_id
        assert all(row[0] == first and row[-1] == last and len(row) <= pack_to for row in rows)
        known = {wordpiece.unk_token_id, last}
        packed = [token for row in rows for token in row[1:-1] if token not in known]
        texts = [wordpiece(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
        assert packed == [token for text in texts for token in text if token not in known]
        if pack_to > 8:
            assert all(len(row) == pack_to for row in rows[:-1])
            joined = [token for row in rows for token in row[1:-1]]
            expected = [token for text in texts if text for token in (*text, last)][:-1]
            assert joined == expected

    def test_the_collator_takes_every_row(self, make: Make, wordpiece: PreTrainedTokenizerFast) -> None:
        for pack_to in (None, 3, 20):
            rows = list(token_rows(make(["☃ ☃", "☃ " * 40 + "fox", "the fox"]), wordpiece, pack_to=pack_to))
            batch = SMAEDataCollator(wordpiece)(rows)
            assert (batch["labels"] != -100).any(dim=1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_those_of_the_tokenizer(kind: str) -> None:
    tokenizer = KINDS[kind]()
    texts = Dataset.from_dict({"body": ["the fox", "the fox jumps"]})
    assert _ids(token_rows(texts, tokenizer, text_column="body")) == [tokenizer(text)["input_ids"] for text in texts["body"]]
    (packed,) = _ids(token_rows(texts, tokenizer, text_column="body", pack_to=60))
    one, two = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts["body"])
    whole = tokenizer("the fox")["input_ids"]
    start = next(n for n in range(len(whole)) if whole[n : n + len(one)] == one)
    assert packed == [*whole[:start], *one, tokenizer.sep_token_id, *two, *whole[start + len(one) :]]


def test_an_unknown_a_is_not_taken_for_a_special_token() -> None:
    tokenizer = tokenizers_support.word_level()
    assert tokenizer("a", add_special_tokens=False)["input_ids"] == [tokenizer.unk_token_id]
    (row,) = _ids(token_rows(Dataset.from_dict({"text": ["the fox"]}), tokenizer))
    assert row == tokenizer("the fox")["input_ids"]


def test_truncation_and_padding_saved_with_a_tokenizer_are_not_applied(wordpiece: PreTrainedTokenizerFast) -> None:
    tokenizer = tokenizers_support.wordpiece()
    text = " ".join(TEXTS)
    whole = len(tokenizer(text)["input_ids"])
    tokenizer.backend_tokenizer.enable_truncation(16)
    tokenizer.backend_tokenizer.enable_padding(length=5000)
    (row,) = _ids(token_rows(Dataset.from_dict({"text": [text]}), tokenizer))
    assert len(row) == whole > 512


@pytest.mark.parametrize("streaming", [False, True])
def test_parquet_with_missing_texts(tmp_path: Path, wordpiece: PreTrainedTokenizerFast, streaming: bool) -> None:
    files = str(tmp_path / "corpus.parquet")
    Dataset.from_dict({"id": [1, 2, 3], "body": ["the fox", None, "fox"]}).to_parquet(files)
    found = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"), streaming=streaming)
    rows = token_rows(found, wordpiece, text_column="body")
    assert _ids(rows) == [wordpiece(text)["input_ids"] for text in ("the fox", "fox")]
