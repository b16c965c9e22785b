"""The fit against a dense solution of its equation."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from st_matryoshka2d.queries.gather import Gathered, counts
from st_matryoshka2d.queries.solve import DOCUMENTS, QUERIES, Sums, solved

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
    owner = Gathered(Tokenizer(WordLevel()), None, Sums(WORDS, 5))
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


def test_as_many_texts_as_directions_predict_others() -> None:
    """Least squares fits as many texts as there are directions with their noise, and predicts others badly."""
    draw = np.random.default_rng(0)
    words = draw.normal(size=(200, 40)).astype(np.float32)
    tokens = [draw.integers(200, size=12).tolist() for _ in range(140)]
    x = counts(tokens, 200)
    known = x @ words @ draw.normal(size=(40, 8))
    embedded = (known + 3 * draw.normal(size=known.shape)).astype(np.float32)
    sums = Sums(words, 8)
    sums.add(x[:40], embedded[:40], 0)
    assert np.corrcoef((x[40:] @ sums.start()).ravel(), known[40:].ravel())[0, 1] > 0.6  # 0.4 with a 1000th of the variance


def test_means_of_both_sides_are_left_off() -> None:
    tables = []
    for shift in (0, 100):
        sums = Sums(WORDS, 5)
        sums.add(counts(TOKENS[:40], 30), EMBEDDED[:40] + shift, DOCUMENTS)
        sums.add(counts(TOKENS[40:], 30), EMBEDDED[40:] - shift, QUERIES)
        tables.append(solved([counts(TOKENS, 30)], sums, 0.1, sums.start()))
    np.testing.assert_allclose(tables[0], tables[1], atol=0.01)
