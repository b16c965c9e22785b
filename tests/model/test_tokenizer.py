"""A copied tokenizer is the same one, and independent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import AddedToken, PreTokenizedString, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from st_matryoshka2d import align, asymmetric, load, truncate
from st_matryoshka2d.model.copies import own_tokenizer
from tests.support import pipelines
from tests.support.quick import quick

TEXTS = ["The cat sat", "a [X] dog <tag>ran", ""]


def unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("cat", -2.0), ("s", -3.0), ("at", -2.5)], 0, True))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return made


def bytes_in_pairs() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: place for place, letter in enumerate([*alphabet, "at"])}, [("a", "t")]))
    made.pre_tokenizer, made.post_processor = pre_tokenizers.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    return made


@pytest.mark.parametrize("kind", ["word pieces", "unigram", "bytes"])
def test_copy_is_the_same_and_independent(kind: str, minilm: SentenceTransformer) -> None:
    made = {"unigram": unigram, "bytes": bytes_in_pairs}
    tokenizer = (
        own_tokenizer(minilm.tokenizer)
        if kind == "word pieces"
        else PreTrainedTokenizerFast(tokenizer_object=made[kind](), pad_token="[PAD]")
    )
    tokenizer.add_tokens([AddedToken("<tag>", lstrip=True), AddedToken("[X]", special=True)])
    tokenizer(TEXTS, padding=True, truncation=True)  # as `encode` does
    expected = tokenizer.backend_tokenizer.to_str()
    tokenizer(TEXTS, padding="max_length", truncation=True, max_length=5)
    before = tokenizer.backend_tokenizer.to_str()
    copied = own_tokenizer(tokenizer)
    assert type(copied) is type(tokenizer)
    assert copied.backend_tokenizer.to_str() == expected
    assert tokenizer.backend_tokenizer.to_str() == before
    assert copied(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    copied.add_tokens(["zebra"])
    copied.padding_side = "left"
    copied.add_special_tokens({"additional_special_tokens": ["[Y]"]})
    copied(TEXTS, padding="max_length", truncation=True, max_length=3)
    tokenizer(TEXTS, padding="max_length", truncation=True, max_length=5)
    assert tokenizer.backend_tokenizer.to_str() == before
    assert "[Y]" not in tokenizer.all_special_tokens
    assert tokenizer.padding_side == "right"


WAYS: dict[str, Callable[[SentenceTransformer, Path], SentenceTransformer]] = {
    "layers": lambda model, _: truncate(model, num_layers=2),
    "vocabulary": lambda model, _: truncate(model, vocabulary=pipelines.OTHERS),
    "asymmetric": lambda model, _: asymmetric(model, query=truncate(model, num_layers=2)),
    "narrowed": lambda model, _: truncate(asymmetric(model, query=truncate(model, num_layers=2)), dim=8),
    "aligned": lambda model, _: align(model, pipelines.TEXTS, steps=0),
    "load": lambda _, folder: load(folder),
    "load layers": lambda _, folder: load(folder, num_layers=2),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", quick([*WAYS], "vocabulary", "narrowed", "load"))
def test_files_say_what_the_model_does(way: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    """Not the length that a tokenizer was trained with, nor what a call set."""
    tiny.max_seq_length = 40
    fast: Any = tiny.tokenizer.backend_tokenizer
    fast.enable_padding(length=12)
    fast.enable_truncation(12)
    tiny.save_pretrained(str(tmp_path / "whole"))
    model = WAYS[way](tiny, tmp_path / "whole")
    model.save_pretrained(str(tmp_path / "made"))
    model.encode(["a cat sat", "a"])
    model.save_pretrained(str(tmp_path / "encoded"))
    files = sorted((tmp_path / "made").rglob("tokenizer.json"))
    assert files
    for file in files:
        assert (tmp_path / "encoded" / file.relative_to(tmp_path / "made")).read_bytes() == file.read_bytes()
        told = json.loads(file.read_text(encoding="utf-8"))
        assert (told["padding"]["strategy"], told["truncation"]["max_length"]) == ("BatchLongest", 40)


def test_settings_of_its_parts_are_its_own(minilm: SentenceTransformer) -> None:
    tokenizer = own_tokenizer(minilm.tokenizer)
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    copied = own_tokenizer(tokenizer)
    tokenizer.backend_tokenizer.normalizer.lowercase = True
    assert tokenizer.tokenize("Cats") == ["cats"]
    assert copied.tokenize("Cats") != ["cats"]


def test_a_part_that_is_written_in_python_is_shared(minilm: SentenceTransformer) -> None:
    class Words:
        def pre_tokenize(self, text: PreTokenizedString) -> None:
            text.split(lambda _, part: [part])

    tokenizer = own_tokenizer(minilm.tokenizer)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Words())
    assert own_tokenizer(tokenizer).tokenize("a cat") == tokenizer.tokenize("a cat")
