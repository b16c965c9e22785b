"""Classes of transformers that make their tokenizer anew from its vocabulary read a smaller one as it was saved."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoTokenizer

from st_matryoshka2d.vocabulary.shrink import Vocabulary
from tests.support import tokenizers

TEXTS = tokenizers.texts(60, seed=5, longest=6)
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# the special tokens at the places that the classes expect, and the kind of the pieces after them
CLASSES: dict[str, tuple[str, list[str]]] = {
    "BertTokenizer": ("WordPiece", BERT),
    "MPNetTokenizer": ("WordPiece", [*ROBERTA, "[UNK]"]),
    "XLMRobertaTokenizer": ("Unigram", ROBERTA),
    "CamembertTokenizer": ("Unigram", ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]),
    "T5Tokenizer": ("Unigram", ["<pad>", "</s>", "<unk>"]),
    "AlbertTokenizer": ("Unigram", ["<pad>", "<unk>", *BERT[2:]]),
    "DebertaV2Tokenizer": ("Unigram", ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]),
    "RobertaTokenizer": ("byte-level BPE", ROBERTA),
    "Qwen2Tokenizer": ("byte-level BPE", []),
}


def made(name: str) -> Any:
    """Make a tokenizer of a class with the pieces that a trainer found."""
    kind, special = CLASSES[name]
    model = json.loads(tokenizers.KINDS[kind]().backend_tokenizer.to_str())["model"]
    if kind == "Unigram":
        pieces = [(piece, score) for piece, score in model["vocab"] if not piece.startswith("<")]
        vocabulary: Any = [*((token, 0.0) for token in special), *pieces]
    else:
        ordered = sorted(model["vocab"], key=model["vocab"].get)
        vocabulary = {token: place for place, token in enumerate(dict.fromkeys([*special, *ordered]))}
    more = {"merges": [tuple(merge) for merge in model["merges"]]} if "merges" in model else {}
    return getattr(transformers, name)(vocab=vocabulary, **more)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_reads_it(name: str, tmp_path: Path) -> None:
    tokenizer = made(name)
    fast = tokenizer.backend_tokenizer
    kept = Vocabulary(fast, tokenizer.all_special_ids, [tokenizer.pad_token_id]).shrunk(
        token for text in TEXTS[:20] for token in fast.encode(text).ids
    )
    assert len(kept.former) < fast.get_vocab_size()
    small = copy.deepcopy(tokenizer, {id(fast): kept.tokenizer})
    small.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert type(again).__name__ in (name, "TokenizersBackend")
    stay = 0
    for text in TEXTS:
        before, after = tokenizer(text)["input_ids"], again(text)["input_ids"]
        assert after == small(text)["input_ids"]
        if set(before) <= set(kept.former):
            stay += 1
            assert [kept.former[token] for token in after] == before
    assert stay >= 20
    assert again.all_special_tokens == tokenizer.all_special_tokens
    assert [kept.former[token] for token in again.all_special_ids] == tokenizer.all_special_ids
    assert set(path.name for path in tmp_path.iterdir()) == {"tokenizer.json", "tokenizer_config.json"}
