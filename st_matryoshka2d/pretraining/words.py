"""Where words begin, in any fast tokenizer's vocabulary; and the tokens that belong to no text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

# The tokens of longer words are words of their own: scripts without spaces make one "word" of a whole sentence in byte-level
# and SentencePiece vocabularies.
_LONGEST_WORD = 16


class Words:
    """Which tokens make a word together: those up to the next that the tokenizer's model or decoder marks as a beginning."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.outside = special_ids(tokenizer)  # of no text
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} is a slow tokenizer, which does not tell where words begin; load it with "
                "AutoTokenizer, which takes the fast one."
            )
        vocabulary = tokenizer.get_vocab()
        ids = np.fromiter(vocabulary.values(), dtype=np.int64)
        unknown = [] if tokenizer.unk_token_id is None else [tokenizer.unk_token_id]
        # what is never masked
        self.special: Int[NDArray[np.int64], " special"] = np.union1d(self.outside, unknown).astype(np.int64)
        self.ordinary: Int[NDArray[np.int64], " ordinary"] = np.setdiff1d(ids, self.special)
        self._known, self._begins, self._ends = (np.zeros(ids.max() + 1, dtype=bool) for _ in range(3))
        self._known[ids] = True
        self._begins[ids], self._ends[ids] = _boundaries(list(vocabulary), tokenizer.backend_tokenizer)

    def number(self, tokens: Int[NDArray[np.int64], " tokens"]) -> Int[NDArray[np.int64], " tokens"]:
        """Which word each token of a text belongs to, counted from 0 without gaps; -1 for special tokens."""
        known = (tokens >= 0) & (tokens < len(self._known))
        known[known] = self._known[tokens[known]]
        if not known.all():
            raise ValueError(
                f"The ids {np.unique(tokens[~known])[:5].tolist()} are not in the tokenizer's vocabulary of "
                f"{self._known.sum()} tokens. Take the tokenizer that made the rows, with all its tokens already added."
            )
        outside = np.isin(tokens, self.outside)
        ends = self._ends[tokens] | outside
        begins = self._begins[tokens] | outside | np.append(True, ends[:-1])
        words = np.cumsum(begins)
        begins |= np.bincount(words)[words] > _LONGEST_WORD
        numbers = np.full(len(tokens), -1)
        masked = ~np.isin(tokens, self.special)
        numbers[masked] = np.unique(np.cumsum(begins)[masked], return_inverse=True)[1]
        return numbers


def special_ids(tokenizer: PreTrainedTokenizerBase) -> Int[NDArray[np.int64], " special"]:
    """The tokens that belong to no text, ascending; the one for unknown text stands for text, so it is not here."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(f"A tokenizer of transformers is needed, got {type(tokenizer).__name__}.")
    tokens = set(tokenizer.all_special_ids)
    tokens |= {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    others = [token for name, token in tokenizer.special_tokens_map.items() if name != "unk_token"]
    if tokenizer.unk_token not in others:
        tokens.discard(tokenizer.unk_token_id)
    return np.array(sorted(tokens), dtype=np.int64)


def _boundaries(tokens: Sequence[str], tokenizer: Tokenizer) -> tuple[list[bool], list[bool]]:
    """Which tokens begin a word, and which end one. A tokenizer that marks neither has words of one token."""
    prefix = getattr(tokenizer.model, "continuing_subword_prefix", None)
    suffix = getattr(tokenizer.model, "end_of_word_suffix", None)
    ends = [token.endswith(suffix) if suffix else False for token in tokens]
    if prefix:
        begins = [not token.startswith(prefix) for token in tokens]
    elif suffix:
        begins = [False] * len(tokens)
    elif tokenizer.decoder is not None:  # which puts a space before it
        begins = [tokenizer.decoder.decode(["a", token])[1:2].isspace() for token in tokens]
    else:
        begins = [True] * len(tokens)
    return begins, ends


def split_special(
    tokens: Sequence[int] | NDArray[np.int64], special: NDArray[np.int64]
) -> tuple[list[int], list[int], list[int]]:
    """Special tokens in front, the text, special tokens behind."""
    of_text = np.flatnonzero(~np.isin(tokens, special))
    start, stop = (int(of_text[0]), int(of_text[-1]) + 1) if len(of_text) else (len(tokens), len(tokens))
    return list(tokens[:start]), list(tokens[start:stop]), list(tokens[stop:])
