"""Tokenize datasets, group tokens into words, and find special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from datasets import Dataset, IterableDataset
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.sizes import positive_int
from st_matryoshka2d.texts import ROWS, LeftOut, is_empty

AnyDataset = TypeVar("AnyDataset", bound=Dataset | IterableDataset)
Ids: TypeAlias = NDArray[np.int64]

# Tokens of longer words count as words: in byte-level and SentencePiece vocabularies, a sentence
# without spaces is one word.
_LONGEST_WORD = 16


def token_rows(
    dataset: AnyDataset, tokenizer: PreTrainedTokenizerBase, *, text_column: str = "text", pack_to: int | None = None
) -> AnyDataset:
    """Tokenize a column of texts for `SMAEDataCollator`; empty texts and those without known tokens are left out.

    Args:
        dataset: Texts, in memory or as a stream.
        tokenizer: The model's tokenizer.
        text_column: Column of the texts; other columns are dropped.
        pack_to: None makes one row per text; the collator crops long ones. A number packs texts,
            joined by the tokenizer's separator, into rows of so many tokens, special ones included;
            the last row of a thousand texts may be shorter.

    Returns:
        A dataset, or a stream, with the column `input_ids`.

    Raises:
        TypeError: `dataset` is not a dataset, `pack_to` is not an integer, or the column does not
            hold texts.
        ValueError: The column is missing, or `pack_to` leaves no room for a text or exceeds
            `tokenizer.model_max_length`.

    Warns:
        DataWarning: Texts are empty (None, NaN or blank). The message counts them and names the
            first few; for a stream, those of the first batch that has any.

    Example:
        >>> from datasets import Dataset
        >>> texts = Dataset.from_dict({"text": ["one short text", "another"]})
        >>> len(token_rows(texts, tokenizer)), len(token_rows(texts, tokenizer, pack_to=64))
        (2, 1)
    """
    _check_column(dataset, text_column)
    unlearnable = {*special_ids(tokenizer).tolist(), tokenizer.unk_token_id}
    front, behind = _template(tokenizer)
    room = None if pack_to is None else positive_int(pack_to, "pack_to") - len(front) - len(behind)
    if pack_to is not None and pack_to > tokenizer.model_max_length:
        raise UsageError(
            f"pack_to={pack_to} is more than tokenizer.model_max_length={tokenizer.model_max_length}, so rows would be "
            "cropped. Use at most that, or raise tokenizer.model_max_length if the model reads more."
        )
    if room is not None and room < 1:
        raise UsageError(f"pack_to={pack_to} leaves no room for a text beside {len(front) + len(behind)} special tokens.")

    in_stream = None if isinstance(dataset, Dataset) else LeftOut(f"Stream, column {text_column!r}", ROWS)
    if in_stream is None:
        _tell_of_empty(dataset, text_column)

    def rows(batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        # a stream has no end to wait for: tell once
        if in_stream is not None and not in_stream.rows:
            list(map(in_stream.lacks, batch[text_column]))
            in_stream.tell()
        texts = [text for text in batch[text_column] if not is_empty(text)]
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise UsageTypeError(
                f"The column {text_column!r} must hold texts, got {wrong[0]!r:.80} ({type(wrong[0]).__name__})."
            )
        ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
        ids = [tokens for tokens in ids if not unlearnable.issuperset(tokens)]
        if room is not None:
            between = [] if tokenizer.sep_token_id is None else [tokenizer.sep_token_id]
            joined = [token for tokens in ids for token in (*tokens, *between)][: -len(between) or None]
            cut = [joined[start : start + room] for start in range(0, len(joined), room)]
            ids = [tokens for tokens in cut if not unlearnable.issuperset(tokens)]
        return {"input_ids": [[*front, *tokens, *behind] for tokens in ids]}

    tokenized: AnyDataset = dataset.select_columns([text_column]).map(rows, batched=True, remove_columns=[text_column])
    return tokenized


def _tell_of_empty(dataset: Dataset, text_column: str) -> None:
    """Warn of empty texts, which are left out."""
    left_out = LeftOut(f"Column {text_column!r}", ROWS)
    for batch in dataset.select_columns([text_column]).with_format(None).iter(1000):
        list(map(left_out.lacks, batch[text_column]))
    left_out.tell()


def _check_column(dataset: Dataset | IterableDataset, text_column: str) -> None:
    if not isinstance(dataset, Dataset | IterableDataset):
        splits = f" with the splits {sorted(dataset)}: choose one" if isinstance(dataset, dict) else ""
        raise UsageTypeError(f"Expected a Dataset or an IterableDataset, got {type(dataset).__name__}{splits}.")
    columns = dataset.column_names
    if columns is None:  # a stream may not know them before its first row
        columns = list(next(iter(dataset), {text_column: None}))
    if text_column not in columns:
        raise UsageError(f"The dataset has no column {text_column!r}; it has {columns}. Choose one with text_column.")


def _template(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer puts before and after a text."""
    front, text, behind = split_special(tokenizer("a")["input_ids"], special_ids(tokenizer))
    if not text:
        raise UsageError(f"{type(tokenizer).__name__} returns no token for the text 'a'; it needs an unknown token.")
    return front, behind


class Words:
    """Group tokens into words, by the beginnings that the tokenizer's model or decoder marks."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.outside = special_ids(tokenizer)
        if not tokenizer.is_fast:
            raise UsageError(
                f"{type(tokenizer).__name__} is a slow tokenizer, which does not mark where words begin; load the fast one "
                "with AutoTokenizer."
            )
        vocabulary = tokenizer.get_vocab()
        ids = np.fromiter(vocabulary.values(), dtype=np.int64)
        unknown = [] if tokenizer.unk_token_id is None else [tokenizer.unk_token_id]
        self.special: Ids = np.union1d(self.outside, unknown).astype(np.int64)  # never masked
        self.ordinary: Ids = np.setdiff1d(ids, self.special)
        self._known, self._begins, self._ends = (np.zeros(ids.max() + 1, dtype=bool) for _ in range(3))
        self._known[ids] = True
        self._begins[ids], self._ends[ids] = _boundaries(list(vocabulary), tokenizer.backend_tokenizer)

    def number(self, tokens: Ids) -> Ids:
        """Return the word number of each token of a text, from 0 without gaps; -1 for special tokens."""
        known = (tokens >= 0) & (tokens < len(self._known))
        known[known] = self._known[tokens[known]]
        if not known.all():
            raise UsageError(
                f"The ids {np.unique(tokens[~known])[:5].tolist()} are not in the tokenizer's vocabulary of "
                f"{self._known.sum()} tokens. Use the tokenizer that made the rows, with all its added tokens."
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


def special_ids(tokenizer: PreTrainedTokenizerBase) -> Ids:
    """Return the tokens that belong to no text, ascending; the unknown token stands for text, so it is not among them."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise UsageTypeError(f"Expected a transformers tokenizer, got {type(tokenizer).__name__}.")
    tokens = set(tokenizer.all_special_ids)
    tokens |= {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    others = [token for name, token in tokenizer.special_tokens_map.items() if name != "unk_token"]
    if tokenizer.unk_token not in others:
        tokens.discard(tokenizer.unk_token_id)
    return np.array(sorted(tokens), dtype=np.int64)


def _boundaries(tokens: Sequence[str], tokenizer: Tokenizer) -> tuple[list[bool], list[bool]]:
    """Return which tokens begin a word, and which end one; if the tokenizer marks neither, each token is a word."""
    prefix = getattr(tokenizer.model, "continuing_subword_prefix", None)
    suffix = getattr(tokenizer.model, "end_of_word_suffix", None)
    ends = [token.endswith(suffix) if suffix else False for token in tokens]
    if prefix:
        return [not token.startswith(prefix) for token in tokens], ends
    if tokenizer.decoder is not None and not suffix:  # the decoder puts a space before a beginning
        return [tokenizer.decoder.decode(["a", token])[1:2].isspace() for token in tokens], ends
    return [not suffix] * len(tokens), ends


def split_special(tokens: Sequence[int] | Ids, special: Ids) -> tuple[list[int], list[int], list[int]]:
    """Split tokens into special ones in front, the text, and special ones behind."""
    of_text = np.flatnonzero(~np.isin(tokens, special))
    start, stop = (int(of_text[0]), int(of_text[-1]) + 1) if len(of_text) else (len(tokens), len(tokens))
    return list(tokens[:start]), list(tokens[start:stop]), list(tokens[stop:])
