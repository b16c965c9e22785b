"""Whole words, compared with the tokenizer's `word_ids`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from st_matryoshka2d.pretraining.tokens import Words, special_ids, split_special
from tests.support import tokenizers as tokenizers_support
from tests.support.tokenizers import KINDS, between_spaces, texts


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_those_of_the_tokenizer_and_numbered_in_order(kind: str) -> None:
    """None is torn, no two with a space between are one, numbers have no gaps, and special tokens have none."""
    tokenizer = KINDS[kind]()
    words = Words(tokenizer)
    compared = 0
    for text in texts(120):
        encoded = tokenizer(text)
        ids = np.array(encoded["input_ids"])
        numbers = words.number(ids)
        pieces = between_spaces(text, encoded)
        of_word: dict[int, set[int]] = {}
        of_number: dict[int, set[int]] = {}
        for word, piece, number in zip(encoded.word_ids(), pieces, numbers.tolist(), strict=True):
            if number >= 0:
                of_number.setdefault(number, set()).add(piece)
                if pieces.count(piece) <= 16:  # longer words may be split
                    of_word.setdefault(word, set()).add(number)
        assert all(len(found) == 1 for found in of_word.values()), (text, encoded.tokens(), numbers)
        assert all(len(found) == 1 for found in of_number.values()), text
        assert ((numbers == -1) == np.isin(ids, tokenizer.all_special_ids)).all()
        drawn = numbers[numbers >= 0]
        assert set(drawn.tolist()) == set(range(drawn.max(initial=-1) + 1))
        assert (np.diff(drawn) >= 0).all()
        compared += len(of_word)
    assert compared > 1500


@pytest.mark.parametrize("make", [tokenizers_support.byte_level, tokenizers_support.unigram])
@pytest.mark.parametrize(
    "text", ["東京は日本の首都です。私は毎日本を読みます。" * 3, "ภาษาไทยไม่มีช่องว่างระหว่างคำ" * 3, "x" * 200]
)
def test_splits_script_without_spaces(make: Callable[[], PreTrainedTokenizerFast], text: str) -> None:
    tokenizer = make()
    numbers = Words(tokenizer).number(np.array(tokenizer("the fox " + text)["input_ids"]))
    assert np.bincount(numbers[numbers >= 0]).max() <= 16
    assert numbers.max() > 20


def test_words_of_packed_texts_end_at_the_separator() -> None:
    tokenizer = tokenizers_support.byte_level()
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("the fox", "fox"))
    numbers = Words(tokenizer).number(np.array([*first, tokenizer.sep_token_id, *second]))
    assert numbers[len(first)] == -1
    assert numbers[len(first) + 1] == numbers[len(first) - 1] + 1


def test_tokens_added_later_are_special_if_they_say_so() -> None:
    tokenizer = tokenizers_support.wordpiece()
    tokenizer.add_special_tokens({"additional_special_tokens": ["[EN]"]})
    tokenizer.add_tokens(["[FR]"], special_tokens=True)  # not in `all_special_ids`
    tokenizer.add_tokens(["zyzzyva"])
    english, french, insect = tokenizer.convert_tokens_to_ids(["[EN]", "[FR]", "zyzzyva"])
    words = Words(tokenizer)
    assert {english, french} <= set(words.special.tolist())
    assert insect in words.ordinary
    assert words.number(np.array(tokenizer("[EN] the zyzzyva [FR]")["input_ids"])).tolist() == [-1, -1, 0, 1, -1, -1]


def test_the_token_for_unknown_text_stands_for_text() -> None:
    tokenizer = tokenizers_support.wordpiece()
    ids = tokenizer("☃ the fox ☃")["input_ids"]
    unknown = tokenizer.unk_token_id
    assert ids.count(unknown) == 2
    front, text, behind = split_special(ids, special_ids(tokenizer))
    assert (front, text, behind) == ([ids[0]], ids[1:-1], [ids[-1]])
    assert unknown in Words(tokenizer).special


def test_a_token_that_is_also_the_unknown_one_stays_special() -> None:
    tokenizer = tokenizers_support.byte_level()
    tokenizer.unk_token = tokenizer.sep_token
    assert tokenizer.sep_token_id in special_ids(tokenizer)


@pytest.mark.parametrize("ids", [[-100, 5], [5, -1], [5, 10**6]])
def test_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="not in the tokenizer's vocabulary of 450 tokens"):
        Words(tokenizers_support.wordpiece()).number(np.array(ids))


def test_ids_in_a_gap_of_the_vocabulary_are_refused() -> None:
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "fox": 7}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")),
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "mask")},
    )
    with pytest.raises(ValueError, match=r"\[5\] are not in"):
        Words(tokenizer).number(np.array([7, 5]))
