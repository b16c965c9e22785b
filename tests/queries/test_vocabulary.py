"""The tokenizer of a table: every kind, kept whole or shrunk."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from st_matryoshka2d.queries.vocabulary import shrunk, table_tokenizer
from tests.support import tokenizers

KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "WordPiece": tokenizers.wordpiece,
    "Unigram": tokenizers.unigram,
    "BPE": tokenizers.byte_level,
    "BPE, end of word": tokenizers.end_of_word,
    "WordLevel": tokenizers.word_level,
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_special_tokens_and_no_end(kind: str) -> None:
    tokenizer = KINDS[kind]()
    backend = tokenizer.backend_tokenizer
    backend.enable_truncation(5)
    backend.enable_padding(length=9)
    made = table_tokenizer(backend)
    backend.no_truncation()
    backend.no_padding()
    for text in tokenizers.texts(20):
        assert made.encode(text, add_special_tokens=False).ids == backend.encode(text, add_special_tokens=False).ids
        assert made.encode(text).ids == made.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
def test_fitted_texts_keep_their_tokens(kind: str) -> None:
    """Also words with characters that no token has."""
    whole = table_tokenizer(KINDS[kind]().backend_tokenizer)
    fitted = tokenizers.texts(12, longest=6)
    found = {token for text in fitted for token in whole.encode(text, add_special_tokens=False).ids}
    small, former = shrunk(whole, found)
    assert len(former) == small.get_vocab_size() < whole.get_vocab_size()
    assert found <= set(former)
    names = json.loads(small.to_str())["model"]["vocab"]
    assert len(names) == len(former)
    for text in fitted:
        ids = small.encode(text, add_special_tokens=False).ids
        assert [former[token] for token in ids] == whole.encode(text, add_special_tokens=False).ids
    for text in tokenizers.texts(50, seed=1):  # other words are made of what is left
        few, many = (each.encode(text, add_special_tokens=False) for each in (small, whole))
        assert few.ids
        if kind != "WordLevel":  # which has no parts of words
            assert unknown(small, few.ids) <= unknown(whole, many.ids)


def unknown(tokenizer: Tokenizer, ids: list[int]) -> int:
    names = {tokenizer.token_to_id(name) for name in ("[UNK]", "<unk>")} - {None}
    return sum(token in names for token in ids)


def test_written_special_token_is_text() -> None:
    whole = table_tokenizer(tokenizers.wordpiece().backend_tokenizer)
    assert "[SEP]" not in whole.encode("the fox [SEP] jumps", add_special_tokens=False).tokens
