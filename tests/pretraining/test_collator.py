"""The two maskings of a text: whole words, chosen tokens, their replacements, and the seed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from st_matryoshka2d.pretraining import SMAEDataCollator
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


NAMES = ["attention_mask", "decoder_input_ids", "decoder_labels", "input_ids", "labels"]


BOTH = [("input_ids", "labels", 0.2), ("decoder_input_ids", "decoder_labels", 0.4)]


Drawn = tuple[Tensor, dict[str, Tensor]]  # original rows, and their batch


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    return {name: make() for name, make in KINDS.items()}


@pytest.fixture(scope="module")
def wordpiece(tokenizers: dict[str, PreTrainedTokenizerFast]) -> PreTrainedTokenizerFast:
    return tokenizers["WordPiece"]


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def examples(count: int, seed: int = 0) -> list[dict[str, str]]:
    # no text of only unknown characters
    return [{"text": "the fox " + text} for text in texts(count, seed)]


@pytest.mark.parametrize("kind", KINDS)
class TestEveryTokenizer:
    @pytest.fixture
    def tokenizer(self, kind: str, tokenizers: dict[str, PreTrainedTokenizerFast]) -> PreTrainedTokenizerFast:
        return tokenizers[kind]

    def test_labels_are_the_originals_exactly_where_chosen(self, tokenizer: PreTrainedTokenizerFast) -> None:
        given = examples(60)
        batch = SMAEDataCollator(tokenizer, seed=0)(given)
        originals = [tokenizer(example["text"])["input_ids"] for example in given]
        assert sorted(batch) == NAMES
        assert {values.dtype for values in batch.values()} == {torch.int64}
        assert {values.shape for values in batch.values()} == {(60, max(map(len, originals)))}
        special = set(tokenizer.all_special_ids)
        for number, original in enumerate(originals):
            length = len(original)
            assert batch["attention_mask"][number].tolist() == [1] * length + [0] * (batch["labels"].shape[1] - length)
            for inputs, labels, _ in BOTH:
                seen, wanted = batch[inputs][number].tolist(), batch[labels][number].tolist()
                assert seen[length:] == [tokenizer.pad_token_id] * (len(seen) - length)
                assert set(wanted[length:]) <= {-100}
                chosen = [position for position in range(length) if wanted[position] != -100]
                assert chosen
                assert all(wanted[position] == original[position] not in special for position in chosen)
                assert all(seen[n] == original[n] for n in range(length) if n not in chosen)

    def test_words_are_masked_all_or_none(self, tokenizer: PreTrainedTokenizerFast) -> None:
        given = examples(30, seed=1)
        batch = SMAEDataCollator(tokenizer, seed=0)(given)
        for number, example in enumerate(given):
            encoded = tokenizer(example["text"])
            pieces = between_spaces(example["text"], encoded)
            for _, labels, _ in BOTH:
                masked: dict[int, set[bool]] = {}
                for n, word in enumerate(encoded.word_ids()):
                    if encoded["input_ids"][n] not in tokenizer.all_special_ids and pieces.count(pieces[n]) <= 16:
                        masked.setdefault(word, set()).add(bool(batch[labels][number, n] != -100))
                assert all(len(found) == 1 for found in masked.values()), example

    def test_a_window_of_a_long_text(self, tokenizer: PreTrainedTokenizerFast) -> None:
        row = tokenizer("the fox jumps over the lazy dog and wonders " * 3)["input_ids"]
        ids = np.array([number for number in range(len(tokenizer)) if number not in tokenizer.all_special_ids])
        text = [n for n, token in enumerate(row) if token not in tokenizer.all_special_ids]
        front, behind = row[: text[0]], row[text[-1] + 1 :]
        # distinct tokens, to locate the window
        row = [*front, *ids[: min(len(ids), 90)].tolist(), *behind]
        collator = SMAEDataCollator(tokenizer, max_length=12)
        torch.manual_seed(0)
        batch = collator([{"input_ids": row}] * 600)
        assert batch["input_ids"].shape == (600, 12)
        windows = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"]).tolist()
        kept = 12 - len(front) - len(behind)
        starts = [row.index(window[len(front)]) for window in windows]
        assert windows == [[*front, *row[start : start + kept], *behind] for start in starts]
        assert set(starts) == set(range(len(front), len(row) - len(behind) - kept + 1))


@pytest.fixture(scope="module")
def drawn(wordpiece: PreTrainedTokenizerFast) -> Drawn:
    known = wordpiece("the fox jumps over the lazy dog and nobody wonders why", add_special_tokens=False)["input_ids"]
    rows = [[wordpiece.cls_token_id, *(known * 12)[:98], wordpiece.sep_token_id]] * 400
    return torch.tensor(rows), SMAEDataCollator(wordpiece, seed=1)([{"input_ids": row} for row in rows])


class TestShares:
    """Binomial bounds that fail by chance once in 10^6 seeds; the seed is fixed."""

    @pytest.mark.parametrize(("inputs", "labels", "ratio"), BOTH)
    def test_the_ratio(self, drawn: Drawn, inputs: str, labels: str, ratio: float) -> None:
        shares = (drawn[1][labels][:, 1:-1] != -100).float().mean(1)
        assert ratio - 0.02 < shares.mean() <= ratio + 0.005
        assert shares.max() <= round(98 * ratio) / 98

    @pytest.mark.parametrize(("inputs", "labels", "ratio"), BOTH)
    def test_80_10_10(
        self, drawn: Drawn, wordpiece: PreTrainedTokenizerFast, inputs: str, labels: str, ratio: float
    ) -> None:
        originals, batch = drawn
        chosen = batch[labels] != -100
        seen, original = batch[inputs][chosen], originals[chosen]
        masked, same = seen == wordpiece.mask_token_id, seen == original
        ordinary = len(wordpiece) - len(wordpiece.all_special_ids)
        by_chance = 0.1 / ordinary  # a random token may be the original
        for found, share in ((masked, 0.8), (same, 0.1 + by_chance), (~masked & ~same, 0.1 - by_chance)):
            low, high = binom.interval(1 - 1e-6, len(seen), share)
            assert low <= int(found.sum()) <= high
        others = seen[~masked & ~same]
        assert not set(others.tolist()) & set(wordpiece.all_special_ids)
        assert len(set(others.tolist())) > 0.5 * ordinary

    def test_the_two_maskings_are_independent(self, drawn: Drawn) -> None:
        encoder, decoder = (drawn[1][labels][:, 1:-1] != -100 for _, labels, _ in BOTH)
        expected = float(encoder.float().mean() * decoder.float().mean())
        # half: tokens of a word go together
        low, high = binom.interval(1 - 1e-6, encoder.numel() // 2, expected)
        assert low <= float((encoder & decoder).float().mean()) * (encoder.numel() // 2) <= high

    def test_nested_masks_contain_the_encoders_and_keep_the_ratios(
        self, drawn: Drawn, wordpiece: PreTrainedTokenizerFast
    ) -> None:
        given = [{"input_ids": row.tolist()} for row in drawn[0]]
        batch = SMAEDataCollator(wordpiece, seed=1, nested_masks=True)(given)
        encoder, decoder = (batch[labels] != -100 for _, labels, _ in BOTH)
        assert not (encoder & ~decoder).any()
        for chosen, (_, _, ratio) in zip((encoder, decoder), BOTH, strict=True):
            assert ratio - 0.02 < chosen[:, 1:-1].float().mean() <= ratio + 0.005
        masked = [batch[inputs] == wordpiece.mask_token_id for inputs, _, _ in BOTH]
        assert (masked[0] & ~masked[1]).any()  # replacements are drawn apart
        assert equal(SMAEDataCollator(wordpiece, seed=1, nested_masks=True)(given), batch)
        independent = (drawn[1][labels] != -100 for _, labels, _ in BOTH)
        assert (next(independent) & ~next(independent)).any()

    def test_every_position_is_drawn_alike(self, drawn: Drawn) -> None:
        for _, labels, ratio in BOTH:
            by_position = (drawn[1][labels][:, 1:-1] != -100).float().mean(0)
            assert abs(by_position - ratio).max() < 0.15


class TestShape:
    @pytest.mark.parametrize(("side", "multiple"), [("left", None), ("left", 8), ("right", 1), ("right", 64)])
    def test_padding_is_on_the_right_to_a_multiple(self, side: str, multiple: int | None) -> None:
        tokenizer = tokenizers_support.wordpiece()
        tokenizer.padding_side = side
        given = examples(5)
        longest = max(len(tokenizer(example["text"])["input_ids"]) for example in given)
        batch = SMAEDataCollator(tokenizer, seed=0, pad_to_multiple_of=multiple)(given)
        width = batch["input_ids"].shape[1]
        assert width % (multiple or 1) == 0
        assert longest <= width < longest + (multiple or 1)
        assert (batch["input_ids"][:, 0] == tokenizer.cls_token_id).all()
        assert (batch["attention_mask"].diff(dim=1) <= 0).all()

    @pytest.mark.parametrize("text", ["fox", "the fox", "understanding"])
    def test_a_short_text_has_a_masked_word(self, wordpiece: PreTrainedTokenizerFast, text: str) -> None:
        batch = SMAEDataCollator(wordpiece, 0.01, 0.02)([{"text": text}] * 50)
        for _, labels, _ in BOTH:
            assert (batch[labels] != -100).any(dim=1).all()
            assert (batch[labels][:, [0, -1]] == -100).all()

    def test_padding_made_before_is_taken_away(self, wordpiece: PreTrainedTokenizerFast) -> None:
        given = [dict(wordpiece(text, padding="max_length", max_length=30)) for text in ("the fox", "a lazy dog jumps")]
        bare = [{"input_ids": wordpiece(text)["input_ids"]} for text in ("the fox", "a lazy dog jumps")]
        collator = SMAEDataCollator(wordpiece, seed=0)
        assert equal(collator(given), collator(bare))

    def test_text_ids_arrays_and_tensors_are_alike(self, wordpiece: PreTrainedTokenizerFast) -> None:
        ids = wordpiece("the lazy fox jumps")["input_ids"]
        collator = SMAEDataCollator(wordpiece, seed=0)
        expected = collator([{"text": "the lazy fox jumps"}])
        for form in (ids, np.array(ids, dtype=np.int32), torch.tensor(ids)):
            assert equal(collator([{"input_ids": form}]), expected)

    def test_the_model_length_of_the_tokenizer_is_the_longest_row(self, wordpiece: PreTrainedTokenizerFast) -> None:
        assert SMAEDataCollator(wordpiece)([{"text": "fox " * 1000}])["input_ids"].shape == (1, 512)

    def test_window_contains_maskable_token(self, wordpiece: PreTrainedTokenizerFast) -> None:
        given = {"text": "☃ " * 60 + "fox " + "☃ " * 40}
        batch = SMAEDataCollator(wordpiece, max_length=12)([given] * 100)
        assert batch["input_ids"].shape == (100, 12)
        assert ((batch["labels"] != -100).sum(1) == 1).all()
        assert len({tuple(row) for row in (batch["labels"] != -100).tolist()}) > 5  # positions vary


class TestSeed:
    def test_masks_depend_on_batch_and_seed(self, wordpiece: PreTrainedTokenizerFast) -> None:
        batches = [examples(6, seed=number) for number in range(4)]
        collator = SMAEDataCollator(wordpiece, seed=5, max_length=20)
        in_order = [collator(batch) for batch in batches]
        torch.manual_seed(1)
        backwards = [SMAEDataCollator(wordpiece, seed=5, max_length=20)(batch) for batch in reversed(batches)][::-1]
        assert all(map(equal, in_order, backwards))
        other = SMAEDataCollator(wordpiece, seed=6, max_length=20)
        assert not any(equal(first, other(batch)) for first, batch in zip(in_order, batches, strict=True))
        first, second = (collator([*batches[0][:1], *batches[n][1:2]])["labels"][0] for n in (0, 1))
        # masks depend on the whole batch
        assert first.shape != second.shape or not torch.equal(first, second)

    def test_without_seed_uses_torch_generator(self, wordpiece: PreTrainedTokenizerFast) -> None:
        collator, batch = SMAEDataCollator(wordpiece), examples(6)
        torch.manual_seed(0)
        first, second = collator(batch), collator(batch)
        torch.manual_seed(0)
        assert not equal(first, second)
        assert equal(first, collator(batch))

    @pytest.mark.parametrize("seed", [0, None])
    def test_workers(self, wordpiece: PreTrainedTokenizerFast, seed: int | None) -> None:
        rows = [{"input_ids": wordpiece(example["text"])["input_ids"]} for example in examples(24)]
        collator = SMAEDataCollator(wordpiece, seed=seed)
        loaders = [DataLoader(rows, batch_size=4, collate_fn=collator, num_workers=workers) for workers in (0, 2)]
        torch.manual_seed(0)
        alone, together = (list(loader) for loader in loaders)
        if seed is not None:
            assert all(map(equal, alone, together))
            return
        same = DataLoader([rows[0]] * 8, batch_size=2, collate_fn=collator, num_workers=2)
        labels = {tuple(batch["decoder_labels"].flatten().tolist()) for batch in same}
        assert len(labels) > 1  # workers do not draw alike

    def test_a_copy_by_pickle_masks_alike(self, wordpiece: PreTrainedTokenizerFast) -> None:
        collator = SMAEDataCollator(wordpiece, seed=3, pad_to_multiple_of=8, max_length=16)
        assert equal(pickle.loads(pickle.dumps(collator))(examples(4)), collator(examples(4)))
