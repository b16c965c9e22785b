"""The fit against a dense solution of its equation, stand-ins for queries, and the tokenizer of a table."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from st_matryoshka2d.queries.solve import DOCUMENTS, Sums, solved
from st_matryoshka2d.queries.stand_ins import StandIns
from st_matryoshka2d.queries.token_counts import TokenCounts, counts, table_tokenizer
from st_matryoshka2d.vocabulary.shrink import Vocabulary
from tests.support import tokenizers

DRAW = np.random.default_rng(0)


WORDS = DRAW.normal(size=(30, 6)).astype(np.float32)


TOKENS = [DRAW.integers(0, 25, size=length).tolist() for length in DRAW.integers(0, 12, size=80)]


EMBEDDED = DRAW.normal(size=(80, 5)).astype(np.float32) + 3


def by_hand() -> np.ndarray:
    x = np.zeros((80, 30))
    for row, tokens in enumerate(TOKENS):
        for token in tokens:
            x[row, token] += 1
    x = np.sqrt(x)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def test_counts_are_square_roots_of_unit_length() -> None:
    np.testing.assert_allclose(counts(TOKENS, 30).toarray(), by_hand(), rtol=1e-6)


def test_narrowing_shares_nothing_with_its_owner() -> None:
    """Only the tokens that occur are left, and the owner stays as it was."""
    owner = TokenCounts(Tokenizer(WordLevel()), None, Sums(WORDS, 5))
    for start in range(0, 80, 4):
        owner.add(TOKENS[start : start + 4], EMBEDDED[start : start + 4], DOCUMENTS)
    before = copy.deepcopy(owner)
    narrow, occur = owner.narrowed([[29, 3]])
    assert set(occur) == {*np.flatnonzero(by_hand().any(0)), 29}
    assert [len(block.indptr) - 1 for block in narrow.blocks] == [64, 16], "chunks are joined"
    found = np.concatenate([block.toarray() for block in narrow.blocks])
    np.testing.assert_allclose(found, by_hand()[:, occur], rtol=1e-6)
    narrow.add([[0, 1]], EMBEDDED[:1], DOCUMENTS)
    for block in narrow.blocks:
        block.data[:] = 7
    assert all((left != right).nnz == 0 for left, right in zip(owner.blocks, before.blocks, strict=True))
    for name, value in vars(before.sums).items():
        np.testing.assert_array_equal(getattr(owner.sums, name), value)


@pytest.mark.parametrize("strength", [1.0, 0.03])
def test_table_solves_the_equation(strength: float) -> None:
    x, y = by_hand(), EMBEDDED.copy()
    for part in (slice(0, 30), slice(30, 80)):  # the two sides
        y[part] -= y[part].mean(0)
    sums = Sums(WORDS, 5)
    for side, parts in enumerate([[slice(0, 10), slice(10, 30)], [slice(30, 80)]]):
        for part in parts:
            sums.add(counts(TOKENS[part], 30), EMBEDDED[part], side)
    pooled = x @ WORDS
    weak = 100 * np.square(pooled).sum() / (80 * 6)  # as strong as 100 of the 80 texts
    towards = WORDS @ np.linalg.solve(pooled.T @ pooled + weak * np.eye(6), pooled.T @ y)
    np.testing.assert_allclose(sums.start(), towards, rtol=1e-3, atol=1e-4)
    expected = np.linalg.solve(x.T @ x + strength * np.eye(30), x.T @ y + strength * towards)
    blocks = [counts(part, 30) for part in (TOKENS[:50], TOKENS[50:])]
    table = solved(blocks, sums, strength, sums.start())
    assert np.linalg.norm(table - expected) < 0.02 * np.linalg.norm(expected)
    unseen = ~x.any(0)
    np.testing.assert_allclose(table[unseen], towards[unseen], rtol=1e-3, atol=1e-4)


def test_three_texts_of_each_document_of_a_sample() -> None:
    drawn = StandIns(50)
    documents = [" ".join(["common", *(f"d{number}w{place}" for place in range(40))]) for number in range(300)]
    for document in documents:
        drawn.add(document, np.empty(0))
    texts = drawn.texts()
    assert len(texts) == 3 * 50
    sources = [int(text.split()[-1].partition("w")[0].removeprefix("d")) for text in texts]
    assert len(set(sources)) == 50
    assert max(sources) > 250, "a sample of all, not the first"
    for place, (text, source) in enumerate(zip(texts, sources, strict=True)):
        words = text.split()
        if place % 3 < 2:
            assert text in documents[source]
            assert 4 <= len(words) <= 14
        else:
            assert {*words} < {*documents[source].split()}
            assert 2 <= len(words) <= 8
            assert "common" not in words, "a word of every document tells nothing"
    assert all(text.startswith("common") for text in texts[::3])
    assert not all(text.startswith("common") for text in texts[1::3])


def test_short_documents_and_languages_without_spaces() -> None:
    drawn = StandIns(10)
    drawn.add("two words", np.empty(0))
    drawn.add("我们今天去北京看长城" * 30, np.empty(0))
    drawn.add("...", np.empty(0))
    assert drawn.texts()[0] == "two words"
    assert all(
        10 < len(text) < 100 for text in drawn.texts() if "我" in text[:40] and " " not in text[:1] and len(text) < 300
    )
    assert "..." in drawn.texts()


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
    kept = Vocabulary(whole).shrunk(found)
    small, former = kept.tokenizer, kept.former
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
