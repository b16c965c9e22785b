"""Mask each text of a batch twice, for a step of SMAE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.pretraining.tokens import Ids, Words, split_special
from st_matryoshka2d.sizes import positive_int

if TYPE_CHECKING:
    from jaxtyping import Int

_NOT_MASKED = -100


class SMAEDataCollator:
    r"""Mask each text of a batch twice, in whole words (Starbucks, Eq. 6).

    .. math::
        x_{enc} = Mask(x, p_{enc}), \qquad x_{dec} = Mask(x, p_{dec}), \qquad p_{dec} > p_{enc}

    Random words are drawn, at least one, with at most a share p of the text's tokens. Of their
    tokens, 80 % become the mask token, 10 % another token and 10 % stay, as in BERT. A text longer
    than `max_length` is cropped to a random window.

    The two maskings are drawn independently, as Eq. 6 reads. In the authors' code, the decoder's
    masked words contain the encoder's: `nested_masks=True`.

    Args:
        tokenizer: A fast tokenizer with a mask token and a padding token.
        encoder_mask_ratio: p_enc; the default is from the authors' script.
        decoder_mask_ratio: p_dec; likewise.
        seed: Masks and crops the same batch the same way, even in a resumed run; None draws from
            torch's generator.
        pad_to_multiple_of: Pad to a multiple of this length, for speed on some devices.
        max_length: Maximum tokens per text, special ones included; None for the tokenizer's
            `model_max_length`.
        nested_masks: Whether every word that is masked for the encoder is masked for the decoder
            too.

    Raises:
        TypeError: `tokenizer` is not one, a ratio is not a number, or a length or the seed is not
            an integer.
        ValueError: The tokenizer is slow or lacks a token, the ratios are not 0 < encoder < decoder
            < 1, the seed is negative, or `max_length` leaves no room for a text.

    Example:
        >>> collator = SMAEDataCollator(tokenizer, seed=0)
        >>> batch = collator([{"text": "whole words are masked"}, {"text": "twice"}])
        >>> sorted(batch)  # each of one shape, (batch, tokens)
        ['attention_mask', 'decoder_input_ids', 'decoder_labels', 'input_ids', 'labels']
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        encoder_mask_ratio: float = 0.2,
        decoder_mask_ratio: float = 0.4,
        seed: int | None = None,
        pad_to_multiple_of: int | None = None,
        max_length: int | None = None,
        nested_masks: bool = False,
    ) -> None:
        self.words = Words(tokenizer)
        for name in ("mask", "pad"):
            if getattr(tokenizer, f"{name}_token_id") is None:
                raise UsageError(f"{type(tokenizer).__name__} has no {name} token, which batches of masked texts need.")
        self.tokenizer = tokenizer
        encoder, decoder = encoder_mask_ratio, decoder_mask_ratio
        self.ratios = {"": encoder, "decoder_": decoder}
        for ratio in self.ratios.values():
            if isinstance(ratio, bool) or not isinstance(ratio, Real):
                raise UsageTypeError(
                    f"A mask ratio must be a number between 0 and 1, got {ratio!r} ({type(ratio).__name__})."
                )
        if not 0 < encoder < decoder < 1:
            raise UsageError(f"Ratios must be 0 < encoder_mask_ratio < decoder_mask_ratio < 1, got {encoder} and {decoder}.")
        self.nested_masks = nested_masks
        self.seed = None if seed is None else positive_int(seed, "seed", least=0)
        self.pad_to_multiple_of = 1 if pad_to_multiple_of is None else positive_int(pad_to_multiple_of, "pad_to_multiple_of")
        self.max_length = tokenizer.model_max_length if max_length is None else positive_int(max_length, "max_length")
        if self.max_length <= (around := tokenizer.num_special_tokens_to_add()):
            raise UsageError(f"max_length={self.max_length} leaves no room for a text beside {around} special tokens.")

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Int[Tensor, "batch tokens"]]:
        """Return the arguments of `SMAEForPreTraining.forward`.

        Args:
            examples: Mappings with `input_ids`, special tokens included, or `text`.

        Raises:
            TypeError: A text is not a string, or ids are not integers.
            ValueError: There are no examples, or one lacks both keys, has no token to mask, or has
                an unknown token.
        """
        if not len(examples):
            raise UsageError("The batch is empty; at least one example is needed.")
        rows = [self._tokens(example) for example in examples]
        random = self._random(rows)
        rows = [self._cropped(row, random) for row in rows]
        width = -(-max(map(len, rows)) // self.pad_to_multiple_of) * self.pad_to_multiple_of
        batch = {"attention_mask": _padded([np.ones_like(row) for row in rows], width, 0)}
        words = [self.words.number(row) for row in rows]
        orders = [random.permutation(row.max() + 1) if self.nested_masks else None for row in words]
        for prefix, ratio in self.ratios.items():
            given = zip(rows, words, orders, strict=True)
            inputs, labels = zip(*(self._masked(*row, ratio, random) for row in given), strict=True)
            batch[f"{prefix}input_ids"] = _padded(inputs, width, self.tokenizer.pad_token_id)
            batch[f"{prefix}labels"] = _padded(labels, width, _NOT_MASKED)
        return batch

    def _tokens(self, example: Mapping[str, Any]) -> Ids:
        if not isinstance(example, Mapping) or not {"input_ids", "text"} & set(example):
            names = sorted(example) if isinstance(example, Mapping) else type(example).__name__
            raise UsageError(
                f"An example must be a mapping with 'input_ids' or 'text', got {names}. The Trainer drops columns that it "
                "does not know: tokenize the texts with token_rows, or set remove_unused_columns=False."
            )
        if "input_ids" in example:
            row = np.asarray(example["input_ids"])
            if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
                raise UsageTypeError(
                    f"The input_ids of an example must be a list of integers, got {example['input_ids']!r:.80}."
                )
            if "attention_mask" in example:
                row = row[np.asarray(example["attention_mask"], dtype=bool)]
            row = row.astype(np.int64)
        elif isinstance(text := example["text"], str):
            row = np.asarray(self.tokenizer(text, verbose=False)["input_ids"], dtype=np.int64)
        else:
            raise UsageTypeError(f"The text of an example must be a string, got {text!r:.80} ({type(text).__name__}).")
        if np.isin(row, self.words.special).all():
            shown = str(example.get("text", row.tolist()))[:80]
            raise UsageError(f"Nothing can be masked in {shown!r}, which has only special tokens. Leave it out.")
        return row

    def _random(self, rows: Sequence[Ids]) -> np.random.Generator:
        if self.seed is None:
            return np.random.default_rng(int(torch.randint(2**62, ())))
        # Seeded by the batch itself: a count of batches would differ in a resumed run or another
        # process.
        digest = blake2b(b"|".join(row.tobytes() for row in rows), digest_size=8).digest()
        return np.random.default_rng([self.seed, int.from_bytes(digest, "big")])

    def _cropped(self, row: Ids, random: np.random.Generator) -> Ids:
        if len(row) <= self.max_length:
            return row
        front, text, behind = split_special(row, self.words.outside)
        room = self.max_length - len(front) - len(behind)
        if room < 1:
            raise UsageError(f"The special tokens at both ends of a row leave no room in max_length={self.max_length}.")
        ordinary = np.append(0, np.cumsum(~np.isin(text, self.words.special)))
        starts = np.flatnonzero(ordinary[room:] > ordinary[:-room])  # windows with a token to mask
        start = int(starts[random.integers(len(starts))])
        return np.array([*front, *text[start : start + room], *behind], dtype=np.int64)

    def _masked(self, row: Ids, words: Ids, order: Ids | None, ratio: float, random: np.random.Generator) -> tuple[Ids, Ids]:
        """Return the masked row, and labels: the original tokens where masked. The first words in `order` are masked."""
        lengths = np.bincount(words[words >= 0])
        order = random.permutation(len(lengths)) if order is None else order
        wanted = max(1, round(ratio * int(lengths.sum())))
        taken = np.searchsorted(np.cumsum(lengths[order]), wanted, side="right")
        chosen = np.isin(words, order[: max(1, int(taken))])
        share = random.random(len(row))
        other = random.choice(self.words.ordinary, len(row))
        seen = np.where(share < 0.8, self.tokenizer.mask_token_id, np.where(share < 0.9, other, row))
        return np.where(chosen, seen, row), np.where(chosen, row, _NOT_MASKED)


def _padded(rows: Iterable[Ids], width: int, filler: int) -> Tensor:
    return torch.from_numpy(np.stack([np.pad(row, (0, width - len(row)), constant_values=filler) for row in rows]))
