"""Which tokens to keep: those of the texts, and those that look like them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.copies import copied_tokenizer
from st_matryoshka2d.vocabulary.shrink import Vocabulary

_SMOOTHING = 10  # tokens that a piece of three characters counts more than it has
_COMMON = 100, 0.25  # a vocabulary lists common tokens first: from which place on, and how much that matters


def tokens_of(tokenizer: Tokenizer, texts: Sequence[str], prompts: Iterable[str]) -> list[NDArray[np.int64]]:
    """Return the tokens of each text, with all of these prompts."""
    own = copied_tokenizer(tokenizer)
    ways = [own.encode_batch_fast([prompt + text for text in texts]) for prompt in prompts]
    return [np.concatenate([np.asarray(way.ids, dtype=np.int64) for way in of_text]) for of_text in zip(*ways, strict=True)]


def chosen(
    vocabulary: Vocabulary,
    by_language: Mapping[str, Sequence[NDArray[np.int64]]],
    always: Sequence[int],
    max_tokens: int | None,
) -> list[int]:
    """Choose the tokens of texts and those that look like them; or the most frequent, up to so many in all."""
    shares: Counter[int] = Counter()
    for texts in by_language.values():
        tokens, counts = np.unique(np.concatenate([*texts, np.zeros(0, np.int64)]), return_counts=True)
        # a language with few texts counts as much as one with many
        shares.update(dict(zip(tokens.tolist(), (counts / counts.sum()).tolist(), strict=True)))
    seen = sorted(shares, key=lambda token: (-shares[token], token))
    alike = _alike(vocabulary, seen)
    if max_tokens is None:
        return [*seen, *alike[: min(len(seen), len(alike) // 2)]]
    if (least := vocabulary.size(always)) > max_tokens:
        raise UsageError(
            f"max_tokens={max_tokens:,} is too few: {least:,} tokens of this model always stay, because all other words are "
            "made of them: special and added ones, those of prompts, signs, single characters, and bytes."
        )
    order = [*seen, *alike]
    fewest, most = 0, len(order)
    while fewest < most:
        half = (fewest + most + 1) // 2
        fewest, most = (half, most) if vocabulary.size([*always, *order[:half]]) <= max_tokens else (fewest, half - 1)
    return order[:fewest]


def _alike(vocabulary: Vocabulary, seen: Sequence[int]) -> list[int]:
    """Order the tokens that would go by how much they look like those that were seen.

    Of the tokens that contain three characters in a row, a share was seen; a token is as likely as
    the geometric mean of these shares, and a common one more.
    """
    pieces = {token: _threes(name) for token, name in vocabulary.names.items()}
    every = Counter(three for threes in pieces.values() for three in threes)
    found = Counter(three for token in seen for three in pieces.get(token, ()))
    average = max(1, len(seen)) / len(pieces)
    shares = {three: (found[three] + average * _SMOOTHING) / (count + _SMOOTHING) for three, count in every.items()}
    logs = {three: math.log(share) for three, share in shares.items()}
    start, weight = _COMMON

    def likeness(token: int) -> float:
        return sum(logs[three] for three in pieces[token]) / len(pieces[token]) - weight * math.log(start + token)

    others = vocabulary.free - {*seen, *vocabulary.front, *vocabulary.spare([])}
    return sorted(others, key=lambda token: (-likeness(token), token))


def _threes(name: str) -> list[str]:
    marked = f"\0{name}\0"
    return [marked[place : place + 3] for place in range(max(1, len(name)))]
