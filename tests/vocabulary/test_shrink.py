"""A smaller tokenizer splits a text as the whole one does, if that makes no other tokens of it."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from st_matryoshka2d import UsageError
from st_matryoshka2d.vocabulary.choice import chosen
from st_matryoshka2d.vocabulary.shrink import Shrunk, Vocabulary
from tests.support.tokenizers import KINDS, texts

MANY = texts(300, seed=1, longest=8)


def same_where_kept(whole: Tokenizer, kept: Shrunk, some: list[str]) -> int:
    """Compare texts whose tokens are all kept; return how many these are."""
    count = 0
    for text in some:
        before = whole.encode(text)
        if set(before.ids) <= set(kept.former):
            after = kept.tokenizer.encode(text)
            assert [kept.former[token] for token in after.ids] == before.ids, text
            assert (after.tokens, after.offsets) == (before.tokens, before.offsets), text
            count += 1
    return count


def same_in_draws(whole: Tokenizer, words: list[str], draw: random.Random, *, times: int, size: int) -> int:
    """Keep the tokens of a few words, many times, and compare all words of kept tokens; return how many these were."""
    count = 0
    for _ in range(times):
        tokens = {token for word in draw.sample(words, size) for token in whole.encode(word).ids}
        count += same_where_kept(whole, Vocabulary(whole).shrunk(tokens), words)
    return count


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_kept_tokens_stay(kind: str) -> None:
    """Random texts and random tokens, many times: what is kept, and what is not, is drawn."""
    whole = KINDS[kind]().backend_tokenizer
    vocabulary, draw = Vocabulary(whole), random.Random(0)
    same = 0
    for share in (0.02, 0.1, 0.3, 0.6):
        for _ in range(4):
            tokens = {token for text in draw.sample(MANY, 12) for token in whole.encode(text).ids}
            tokens |= {token for token in range(whole.get_vocab_size()) if draw.random() < share}
            kept = vocabulary.shrunk(tokens)
            assert tokens <= set(kept.former)
            assert len(set(kept.former)) == len(kept.former) == kept.tokenizer.get_vocab_size() == vocabulary.size(tokens)
            same += same_where_kept(whole, kept, MANY)
    assert same > 300
    assert len(vocabulary.shrunk([]).former) < 0.7 * whole.get_vocab_size()


def test_unknown_characters_and_words_stay_unknown() -> None:
    for kind in ("WordPiece", "Unigram", "BPE with </w>", "WordLevel"):
        whole = KINDS[kind]().backend_tokenizer
        kept = Vocabulary(whole).shrunk(whole.encode("the fox jumps").ids)
        assert same_where_kept(whole, kept, ["the ⁂ fox", "fox⁂ the", "⁂⁂"]) == 3, kind
        assert kept.tokenizer.encode("a⁂").tokens


def test_bytes_where_a_character_is_unknown() -> None:
    pieces = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -9.0) for byte in range(256)), ("cat", -1.0), ("c", -3.0), ("at", -2.0)]
    for model in (
        models.Unigram(pieces, 0, True),
        models.BPE(
            {name: place for place, (name, _) in enumerate([*pieces, ("a", 0), ("t", 0)])},
            [("a", "t"), ("c", "at")],
            byte_fallback=True,
            unk_token="<unk>",
        ),
    ):
        whole = Tokenizer(model)
        kept = Vocabulary(whole).shrunk([])
        assert whole.token_to_id("cat") not in kept.former
        assert same_where_kept(whole, kept, ["é", "c☃"]) == 2


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("parts", [("", ""), ("##", ""), ("", "</w>")])
def test_merges_of_random_words(parts: tuple[str, str], whole_words: bool) -> None:
    """Merges in any order, several for one token, tokens that merges reach late or never."""
    inside, end = parts
    for seed in range(20):
        draw = random.Random(seed)
        alphabet = [start + letter + stop for letter in "abc" for start in {"", inside} for stop in {"", end}]
        vocabulary, merges = list(alphabet), []
        for _ in range(40):
            left, right = draw.choices(vocabulary, k=2)
            if (inside and not right.startswith(inside)) or (end and left.endswith(end)):
                continue
            merges.append((left, right))
            made = left + right.removeprefix(inside)
            if made not in vocabulary:
                vocabulary.append(made)
        affixes = {"continuing_subword_prefix": inside, "end_of_word_suffix": end}
        model = models.BPE(
            {token: place for place, token in enumerate(vocabulary)},
            list(dict.fromkeys(merges)),
            ignore_merges=whole_words,
            **{name: affix for name, affix in affixes.items() if affix},
        )
        whole = Tokenizer(model)
        whole.pre_tokenizer = pre_tokenizers.Whitespace()
        words = ["".join(draw.choices("abc", k=draw.randint(1, 9))) for _ in range(150)]
        assert same_in_draws(whole, words, draw, times=10, size=5) > 50


def ties() -> Tokenizer:
    """Pieces of equal scores, so that several paths are the best."""
    draw = random.Random(3)
    pieces = {"".join(draw.choices("abcd", k=draw.randint(1, 4))): -float(draw.randint(1, 3)) for _ in range(60)}
    return Tokenizer(models.Unigram([("<unk>", 0.0), *pieces.items()], 0, False))


def test_equal_paths_stay() -> None:
    whole, draw = ties(), random.Random(0)
    words = ["".join(draw.choices("abcde", k=draw.randint(1, 12))) for _ in range(300)]
    assert same_in_draws(whole, words, draw, times=30, size=6) > 300


def test_ids_wherever_they_stand() -> None:
    """Around a text in every kind of post-processor, in padding, of added tokens within and beyond the model."""
    tokenizer: PreTrainedTokenizerFast = KINDS["long template"]()
    whole = tokenizer.backend_tokenizer
    whole.add_tokens([AddedToken("<tag>", lstrip=True), AddedToken("zzz", single_word=True, normalized=True)])
    whole.enable_padding(pad_id=whole.token_to_id("[PAD]"), pad_token="[PAD]", length=20)
    text = "the <tag> fox zzz azzz"
    for processor in (
        whole.post_processor,
        processors.BertProcessing(("[SEP]", whole.token_to_id("[SEP]")), ("[CLS]", whole.token_to_id("[CLS]"))),
        processors.RobertaProcessing(("[SEP]", whole.token_to_id("[SEP]")), ("[CLS]", whole.token_to_id("[CLS]"))),
        processors.Sequence([processors.ByteLevel(), whole.post_processor]),
    ):
        whole.post_processor = processor
        kept = Vocabulary(whole, fixed=[0]).shrunk(whole.encode(text).ids)
        before, after = whole.encode(text, "fox"), kept.tokenizer.encode(text, "fox")
        assert after.tokens == before.tokens
        assert [kept.former[token] for token in after.ids] == before.ids
        assert after.type_ids == before.type_ids
        assert json.loads(kept.tokenizer.to_str())["padding"]["pad_id"] == kept.tokenizer.token_to_id("[PAD]")


def test_fixed_tokens_keep_their_ids() -> None:
    vocabulary = {name: place for place, name in enumerate(["aa", "bb", "cc", "[PAD]", "[UNK]", "dd", "ee"])}
    whole = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    kept = Vocabulary(whole, named=[3], fixed=[3]).shrunk([1, 2, 5])
    assert kept.former == [1, 2, 5, 3, 4]
    assert kept.spare == range(4, 5)
    assert Vocabulary(whole, named=[3], fixed=[3]).shrunk([1]).former == [3, 1, 4], "there are not enough others"


def pairs(*merges: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the vocabulary and the merges of a BPE."""
    made = [tuple(merge.split(" ")) for merge in merges]
    alphabet = sorted({letter for left, right in made for letter in (left, right)} - {left + right for left, right in made})
    names = [*alphabet, *(left + right for left, right in made)]
    return {name: place for place, name in enumerate(names)}, made


BYTES = pairs("Â ¿", "Ġ Â¿", "Ġ y", "Ġ 7", '? "', "Ġ c", "a t", "Ġc at", "Ġ ä")
ENDS = pairs("? ?</w>", "c a", "ca t</w>")
PIECES = ["<unk>", "▁¿", "▁y", "▁7", '?"', "▁€", "▁cat", "10", "▁", "¿", "y", "7", "?", '"', "€", "c", "a", "t", "1", "0"]
WORDS = {word: place for place, word in enumerate(["[UNK]", "¿", "y", "É", "7", '?"', "€", "cat", "10"])}
PARTS = [*WORDS, '"', "?", '##"', "1", "##0", "c", "##a", "##t"]
ALWAYS: dict[str, tuple[Any, Any, set[str], set[str]]] = {
    "Unigram": (
        models.Unigram([(name, -float(place)) for place, name in enumerate(PIECES)], 0, False),
        pre_tokenizers.Metaspace(),
        {"▁¿", "▁y", "▁7", '?"', "▁€"},
        {"▁cat", "10"},
    ),
    "bytes": (
        models.BPE(*BYTES),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        {"ĠÂ¿", "Ġy", "Ġ7", '?"'},
        {"Ġcat", "at", "Ġä"},
    ),
    "ends": (models.BPE(*ENDS, end_of_word_suffix="</w>"), pre_tokenizers.WhitespaceSplit(), {"??</w>"}, {"cat</w>", "ca"}),
    "words": (models.WordLevel(WORDS, "[UNK]"), pre_tokenizers.WhitespaceSplit(), {*WORDS} - {"cat", "10"}, {"cat", "10"}),
    "word pieces": (
        models.WordPiece({name: place for place, name in enumerate(PARTS)}, unk_token="[UNK]"),
        pre_tokenizers.WhitespaceSplit(),
        {*PARTS} - {"cat", "10"},
        {"cat", "10"},
    ),
}
DECODERS = {"Unigram": decoders.Metaspace(), "bytes": decoders.ByteLevel(), "ends": decoders.BPEDecoder("</w>")}


@pytest.mark.parametrize("kind", ALWAYS)
def test_signs_and_letters_alone_always_stay(kind: str) -> None:
    """With and without the mark of a word's start, as no document has the `▁¿` of a question."""
    model, before, stay, go = ALWAYS[kind]
    whole = Tokenizer(model)
    whole.pre_tokenizer = before
    if kind in DECODERS:
        whole.decoder = DECODERS[kind]
    kept = Vocabulary(whole).shrunk([])
    names = kept.tokenizer.get_vocab().keys()
    assert (stay - names, go & names) == (set(), set())
    questions = ["¿ y 7", "y ¿", "7 y", "??"]
    assert same_where_kept(whole, kept, questions) >= 2


CHINESE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<S>", "<T>", "<", ">", "S", "中", "国", "。", "a", "b", "ab", "aT", "bab"]
CHINESE += ["##中", "##国", "##。", "##a", "##b", "##ab"]


def test_a_chinese_vocabulary() -> None:
    """`<T>` and `aT` have no `##T`: they only veto a cut if a text has them; `##中` is a token of no text."""
    whole = Tokenizer(models.WordPiece({name: place for place, name in enumerate(CHINESE)}, unk_token="[UNK]"))
    whole.normalizer, whole.pre_tokenizer = normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()
    vocabulary = Vocabulary(whole, named=[2, 3])
    some = ["a中国。", "ab <S> a", "中ab", "aT"]
    tokens = [np.array(whole.encode(text).ids) for text in some[:3]]
    kept = vocabulary.shrunk(chosen(vocabulary, {"zh": tokens * 9}, [], None))
    names = kept.tokenizer.get_vocab().keys()
    assert {"[CLS]", "[SEP]", "中", "国", "。", "<", ">", "S", "a", "b", "ab", "##b", "bab"} <= names
    assert not {"<S>", "<T>", "aT", "##中", "##国", "##。"} & names
    assert same_where_kept(whole, kept, [*some, "国中 > a<b"]) == 4
    with pytest.raises(UsageError, match="'aT' contains '##T'"):
        vocabulary.shrunk(whole.encode("aT").ids)


REFUSED: dict[str, Any] = {
    "dropout": models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5),
    "lists a piece twice": models.Unigram([("<unk>", 0.0), ("a", -1.0), ("a", -2.0)], 0, False),
    "'ab' contains '##b'": models.WordPiece({"[UNK]": 0, "a": 1, "ab": 2}, unk_token="[UNK]"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_exact_is_refused(reason: str) -> None:
    with pytest.raises(UsageError, match="cannot be cut so that texts stay as they are") as told:
        Vocabulary(Tokenizer(REFUSED[reason])).shrunk([0, 1, 2])
    assert reason in str(told.value)


def test_parts_in_python_are_refused() -> None:
    class Words:
        def pre_tokenize(self, text: Any) -> None:
            text.split(lambda _, part: [part])

    whole = Tokenizer(models.WordLevel({"a": 0}))
    whole.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Words())
    with pytest.raises(UsageError, match="written in Python"):
        Vocabulary(whole)
