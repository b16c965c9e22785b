"""Texts to rows of tokens, for a data set in memory or a stream."""

from __future__ import annotations

from typing import Any, TypeVar

from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from st_matryoshka2d.pretraining.words import special_ids, split_special
from st_matryoshka2d.sizes import positive_int

AnyDataset = TypeVar("AnyDataset", bound=Dataset | IterableDataset)


def token_rows(
    dataset: AnyDataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    text_column: str = "text",
    pack_to: int | None = None,
) -> AnyDataset:
    """Tokenize a column of texts for `SMAEDataCollator`. Texts without a token that the tokenizer knows are left out.

    Args:
        dataset: Texts, in memory or as a stream.
        tokenizer: That of the model.
        text_column: Where the texts are; other columns are dropped.
        pack_to: None makes a row of each text, of which the collator crops what is too long. A number puts texts one after
            another, with the tokenizer's separator between them, into rows of that many tokens, special ones included; the
            last row of each thousand texts may be shorter. Nothing is lost, and little is padding.

    Returns:
        A data set, or a stream, with the column `input_ids`.

    Raises:
        TypeError: Not a data set, `pack_to` is not an integer, or the column holds something else than texts.
        ValueError: There is no such column, or `pack_to` leaves no room for a text or is more than the tokenizer's
            `model_max_length`.

    Example:
        >>> from datasets import Dataset
        >>> texts = Dataset.from_dict({"text": ["one short text", "", "another"]})
        >>> len(token_rows(texts, tokenizer)), len(token_rows(texts, tokenizer, pack_to=64))
        (2, 1)
    """
    _check_column(dataset, text_column)
    unlearnable = {*special_ids(tokenizer).tolist(), tokenizer.unk_token_id}
    front, behind = _template(tokenizer)
    room = None if pack_to is None else positive_int(pack_to, "pack_to") - len(front) - len(behind)
    if pack_to is not None and pack_to > tokenizer.model_max_length:
        raise ValueError(
            f"pack_to={pack_to} is more than the model reads, {tokenizer.model_max_length} tokens by its tokenizer: all "
            "beyond would be cropped. Take that, or set tokenizer.model_max_length if the model reads more."
        )
    if room is not None and room < 1:
        raise ValueError(f"pack_to={pack_to} leaves no room for a text beside {len(front) + len(behind)} special tokens.")

    def rows(batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        texts = [text for text in batch[text_column] if text is not None]
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise TypeError(f"The column {text_column!r} must hold texts, got {wrong[0]!r:.80} ({type(wrong[0]).__name__}).")
        ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
        ids = [tokens for tokens in ids if not unlearnable.issuperset(tokens)]
        if room is not None:
            between = [] if tokenizer.sep_token_id is None else [tokenizer.sep_token_id]
            joined = [token for tokens in ids for token in (*tokens, *between)][: -len(between) or None]
            cut = [joined[start : start + room] for start in range(0, len(joined), room)]
            ids = [tokens for tokens in cut if not unlearnable.issuperset(tokens)]
        return {"input_ids": [[*front, *tokens, *behind] for tokens in ids]}

    made: AnyDataset = dataset.select_columns([text_column]).map(rows, batched=True, remove_columns=[text_column])
    return made


def _check_column(dataset: Dataset | IterableDataset, text_column: str) -> None:
    if not isinstance(dataset, Dataset | IterableDataset):
        splits = f" with the splits {sorted(dataset)}: choose one" if isinstance(dataset, dict) else ""
        raise TypeError(f"A Dataset or an IterableDataset is needed, got {type(dataset).__name__}{splits}.")
    columns = dataset.column_names
    if columns is None:  # a stream may not know before its first row
        columns = list(next(iter(dataset), {text_column: None}))
    if text_column not in columns:
        raise ValueError(f"The data set has no column {text_column!r}; it has {columns}. Name it with text_column.")


def _template(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before a text, and behind it."""
    front, text, behind = split_special(tokenizer("a")["input_ids"], special_ids(tokenizer))
    if not text:
        raise ValueError(f"{type(tokenizer).__name__} makes no token of the text 'a'; it needs one for unknown text.")
    return front, behind
