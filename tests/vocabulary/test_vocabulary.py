"""A model with the vocabulary of texts embeds them as the whole model does, bit for bit, and says what it costs others."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import AddedToken
from transformers import BertForMaskedLM, PreTrainedTokenizerFast

from st_matryoshka2d import DataWarning, UsageError, align, asymmetric, encode_sizes, fit_queries, load, truncate
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.vocabulary.rows import cut_rows
from tests.support import families, tokenizers
from tests.support.pipelines import TEXTS, routed
from tests.support.quick import quick

FEW = pytest.mark.filterwarnings("ignore:Of texts that were left out", "ignore:40 documents tell little")
pytestmark = [FEW, pytest.mark.filterwarnings("ignore:.* tokens of a text are unknown to this model")]

SEEN = [text for text in TEXTS if not {"red", "tree"} & set(text.split())]
MANY = tokenizers.texts(60, seed=2, longest=6)
LEARNED, OTHER = MANY[:30], MANY[30:]
READ = [*LEARNED, "the fox 😀 qwxzyv"]


def rows(model: SentenceTransformer) -> int:
    return int(model[0].model.get_input_embeddings().num_embeddings)


def built(family: str, kind: str, folder: Path) -> SentenceTransformer:
    """Build a family with a tokenizer of a kind, and the ids of special tokens that it gives them."""
    tokenizer: PreTrainedTokenizerFast = tokenizers.KINDS[kind]()
    tokenizer.add_tokens([AddedToken("<tag>", lstrip=True), AddedToken("naïvely", single_word=True)])
    config = families.CONFIGS[family]()
    config.vocab_size = len(tokenizer) + 7  # rows that no token has
    config.pad_token_id, config.bos_token_id = tokenizer.pad_token_id, tokenizer.cls_token_id
    config.eos_token_id = tokenizer.sep_token_id
    families.build(config).save_pretrained(folder)
    tokenizer.model_max_length = 48
    tokenizer.save_pretrained(folder)
    transformer = Transformer(str(folder))
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode=("cls", "mean", "lasttoken"))
    return SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu").eval()


@pytest.mark.parametrize("name", quick([*families.CONFIGS, *families.UNNAMED], "bert", "mpnet", "t5-encoder", "qwen3"))
def test_every_family(name: str, tmp_path: Path) -> None:
    model = families.pipeline((families.CONFIGS | families.UNNAMED)[name](), tmp_path / "weights")
    before = model.state_dict()
    small = truncate(model, num_layers=3, dim=16, vocabulary=SEEN)
    whole = truncate(model, num_layers=3, dim=16)
    assert rows(small) == small.config.vocab_size
    assert np.array_equal(small.encode(SEEN), whole.encode(SEEN))
    if len(model.tokenizer) == rows(model):  # not one that a class of transformers made another of
        assert rows(small) < rows(model)
        assert not np.array_equal(small.encode(["red tree"]), whole.encode(["red tree"]))
    small.save_pretrained(str(tmp_path / "small"))
    for again in (SentenceTransformer(str(tmp_path / "small"), device="cpu"), load(tmp_path / "small", device="cpu")):
        assert np.array_equal(again.encode(SEEN), whole.encode(SEEN))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.config.vocab_size == len(families.VOCABULARY)


PAIRS = [*((kind, "roberta") for kind in tokenizers.KINDS)]
PAIRS += [("Unigram", family) for family in ("mpnet", "qwen3", "modernbert", "deberta-v2")]
QUICK = ("WordPiece", "roberta"), ("byte-level BPE", "roberta"), ("Unigram", "qwen3")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("kind", "family"), quick(PAIRS, *QUICK))
def test_every_tokenizer(kind: str, family: str, side: str, tmp_path: Path) -> None:
    """With prompts, added tokens, unknown characters, and batches of different lengths padded on either side."""
    model = built(family, kind, tmp_path / "weights")
    model.tokenizer.padding_side = side
    model.prompts = {"query": "where is ", "document": "<tag>"}
    small = truncate(model, vocabulary=READ, max_tokens=None)
    assert rows(small) < rows(model)
    texts = [*READ, *(text for text in OTHER if set(ids(model, text)) <= set(ids(model, *READ)))]
    for way in ("encode", "encode_query", "encode_document"):
        assert np.array_equal(getattr(small, way)(texts), getattr(model, way)(texts)), way
    tagged = ["naïvely", "a <tag>fox"]
    known = [text for text in tagged if set(ids(model, text)) <= set(ids(model, *READ, "naïvely", "<tag>"))]
    assert np.array_equal(small.encode(known), model.encode(known))
    small.save_pretrained(str(tmp_path / "small"))
    again = SentenceTransformer(str(tmp_path / "small"), device="cpu")
    assert again.tokenizer.padding_side == side
    assert np.array_equal(again.encode_query(texts), model.encode_query(texts))
    special = [token for token in model.tokenizer.all_special_tokens]
    assert again.tokenizer.all_special_tokens == special
    assert again.config.pad_token_id == again.tokenizer.pad_token_id == small.tokenizer.pad_token_id


def ids(model: SentenceTransformer, *texts: str) -> list[int]:
    prompts = ["", *model.prompts.values()]
    return [token for text in texts for prompt in prompts for token in model.tokenizer(prompt + text)["input_ids"]]


def test_positions_count_from_the_padding(tmp_path: Path) -> None:
    """A padding token that cannot keep its id moves the positions of a RoBERTa, so it is refused."""
    tokenizer = families.tokenizer({token: 60 + place for place, token in enumerate(families.VOCABULARY)})
    assert tokenizer.pad_token_id == 60
    config = families.CONFIGS["roberta"]()
    config.vocab_size, config.pad_token_id, config.max_position_embeddings = 90, 60, 200
    families.build(config).save_pretrained(tmp_path)
    tokenizer.backend_tokenizer.post_processor = None  # type: ignore[assignment]
    tokenizer.save_pretrained(tmp_path)
    transformer = Transformer(str(tmp_path))
    model = SentenceTransformer(modules=[transformer, Pooling(32)], device="cpu")
    with pytest.raises(UsageError, match="counting positions from the padding token, whose id 60 could not stay"):
        truncate(model, vocabulary=SEEN)


def test_weights_are_shared_but_for_the_rows(tiny: SentenceTransformer) -> None:
    small = truncate(tiny, vocabulary=SEEN)
    own, whole = dict(small.named_parameters()), dict(tiny.named_parameters())
    apart = {name for name in own if own[name].data_ptr() != whole[name].data_ptr()}
    assert apart == {"0.model.embeddings.word_embeddings.weight"}
    assert small.model_card_data.model_name.endswith(f"-{rows(small)}v")


def test_routes_tables_and_sides(tiny: SentenceTransformer, tmp_path: Path) -> None:
    """Whatever has a vocabulary gets the smaller one: routes, a table of tokens, both sides of an asymmetric model."""
    router = routed(tiny, shared=False)
    small = truncate(router, num_layers=2, vocabulary=SEEN)
    whole = truncate(router, num_layers=2)
    for task in ("query", "document"):
        assert np.array_equal(small.encode(SEEN, task=task), whole.encode(SEEN, task=task))
    assert len({module.model.config.vocab_size for module in small.modules() if isinstance(module, Transformer)}) == 1

    fitted = fit_queries(align(tiny, TEXTS, layers="first"), TEXTS)
    for cut in (truncate(fitted, num_layers=0), asymmetric(fitted, query=0)):
        less = truncate(cut, vocabulary=SEEN)
        assert sum(weight.numel() for weight in less.parameters()) < sum(weight.numel() for weight in cut.parameters())
        assert np.array_equal(less.encode_query(SEEN), cut.encode_query(SEEN))
        assert np.array_equal(less.encode_document(SEEN), cut.encode_document(SEEN))
        less.save_pretrained(str(tmp_path / type(cut[0]).__name__))
        plain = SentenceTransformer(str(tmp_path / type(cut[0]).__name__), device="cpu")
        assert np.array_equal(plain.encode_query(SEEN), cut.encode_query(SEEN))

    less = truncate(fitted, vocabulary=SEEN)
    sizes = ["0L-32d", "2L-16d", "4L-32d"]
    found, expected = encode_sizes(less, SEEN, sizes), encode_sizes(fitted, SEEN, sizes)
    assert all(np.array_equal(found[size], expected[size]) for size in found)
    less.save_pretrained(str(tmp_path / "fitted"))
    found = encode_sizes(load(tmp_path / "fitted", device="cpu"), SEEN, sizes)
    assert all(np.array_equal(found[size], expected[size]) for size in found)


def test_a_tied_head_goes_along() -> None:
    network = BertForMaskedLM(families.CONFIGS["bert"]())
    cut_rows(network, [0, 1, 4, 20])
    head = network.get_output_embeddings()
    assert head.weight is network.get_input_embeddings().weight
    assert (head.out_features, network.get_input_embeddings().num_embeddings, network.config.vocab_size) == (4, 4, 4)


def test_a_cut_of_a_cut(tiny: SentenceTransformer) -> None:
    once = truncate(tiny, vocabulary=SEEN)
    twice = truncate(once, num_layers=2, vocabulary=SEEN[:8])
    assert rows(twice) < rows(once)
    assert np.array_equal(twice.encode(SEEN[:8]), truncate(tiny, num_layers=2).encode(SEEN[:8]))
    assert twice.config.matryoshka_vocabulary["of"] == rows(tiny)
    assert Declaration.of(truncate(once, num_layers=2).config).vocabulary == Declaration.of(once.config).vocabulary


def test_held_out_texts_tell_the_cost(tmp_path: Path) -> None:
    """Counted again: the vocabulary of nine tenths, and what it does to the other tenth."""
    model = built("bert", "WordPiece", tmp_path)
    texts = {"a": tokenizers.texts(80, seed=3, longest=3), "b": tokenizers.texts(40, seed=4, longest=3)}
    held = {language: of[9::10] for language, of in texts.items()}
    learned = {language: [text for text in of if text not in held[language]] for language, of in texts.items()}
    told = truncate(model, vocabulary=texts).config.matryoshka_vocabulary
    first = truncate(model, vocabulary=learned)
    assert told["texts"] == {"a": 80, "b": 40}
    for language, of in held.items():
        before, after = model.encode(of), first.encode(of)
        same = np.array([np.array_equal(*pair) for pair in zip(before, after, strict=True)])
        names = {first.tokenizer.convert_ids_to_tokens(token) for token in range(rows(first))}
        exact = [set(model.tokenizer.tokenize(text)) <= names for text in of]
        assert same.tolist() == exact
        assert told["exact"][language] == pytest.approx(np.mean(exact), abs=1e-4)
        if not all(exact):
            assert told["cosine"][language] == pytest.approx((before * after).sum(1)[~same].mean(), abs=1e-3)


@pytest.mark.filterwarnings("default:Of texts that were left out", "default:Nothing tells")
def test_a_small_vocabulary_is_told(tmp_path: Path) -> None:
    model = built("bert", "WordPiece", tmp_path)
    with pytest.warns(DataWarning, match="few are embedded as before: .* of 'texts'"):
        truncate(model, vocabulary=[*MANY[:9], "Understanding encoders of yesterday's conference"])
    with pytest.warns(DataWarning, match="Nothing tells what this vocabulary costs: fewer than 10 texts in 'en'"):
        truncate(model, vocabulary={"de": MANY, "en": MANY[:9]})


def test_so_many_tokens_and_the_most_frequent(tmp_path: Path) -> None:
    for kind in ("WordPiece", "byte-level BPE"):
        model = built("bert", kind, tmp_path / kind)
        texts = ["the fox jumps"] * 30 + ["understanding representation"] * 3
        least = rows(truncate(model, vocabulary=["a"], max_tokens=rows(model))) - 1
        with pytest.raises(UsageError, match=r"max_tokens=3 is too few: \d+ tokens of this model always stay"):
            truncate(model, vocabulary=texts, max_tokens=3)
        always = int(told_least(model))
        small = truncate(model, vocabulary=texts, max_tokens=always + 6)
        assert rows(small) in range(always + 1, always + 7 + 7), (least, always)
        assert np.array_equal(small.encode(["the"]), model.encode(["the"]))


def told_least(model: SentenceTransformer) -> str:
    with pytest.raises(UsageError) as told:
        truncate(model, vocabulary=["a"], max_tokens=3)
    return str(told.value).split("few: ")[1].split(" tokens")[0].replace(",", "")


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"vocabulary": "a text"}, TypeError, "must be a list of texts, got one string"),
    ({"vocabulary": ["a", 3]}, TypeError, "every text must be a string"),
    ({"vocabulary": []}, UsageError, "there are no texts in 'texts'"),
    ({"vocabulary": {}}, UsageError, "there are no texts"),
    ({"vocabulary": {"de": ["ein Text"], "en": []}}, UsageError, "there are no texts in 'en'"),
    ({"vocabulary": ["a"], "max_tokens": 0}, UsageError, "max_tokens"),
    ({"max_tokens": 100}, UsageError, "max_tokens needs texts"),
    ({"num_layers": 2, "max_tokens": 100}, UsageError, "max_tokens needs texts"),
]


@pytest.mark.parametrize(("given", "kind", "told"), WRONG)
def test_refusals(given: dict[str, Any], kind: type[Exception], told: str, tiny: SentenceTransformer) -> None:
    with pytest.raises(kind, match=told):
        truncate(tiny, **given)


def test_a_slow_tokenizer_is_refused(tiny: SentenceTransformer) -> None:
    class Slow:
        pad_token = "[PAD]"

    tiny[0].processor = Slow()
    with pytest.raises((UsageError, TypeError)):
        truncate(tiny, vocabulary=SEEN)


@pytest.mark.filterwarnings("default:.* tokens of a text are unknown to this model")
@pytest.mark.parametrize("way", ["truncate", "load", "pickled"])
def test_another_language_is_told_once(way: str, tmp_path: Path) -> None:
    model = built("bert", "Unigram", tmp_path / "weights")
    small = truncate(model, vocabulary={"en": ["the quick brown fox jumps over the lazy dog"] * 20})
    small.save_pretrained(str(tmp_path / "small"))
    ways: dict[str, Callable[[], SentenceTransformer]] = {
        "truncate": lambda: truncate(small, num_layers=2),
        "load": lambda: load(tmp_path / "small", device="cpu"),
        "pickled": lambda: pickle.loads(pickle.dumps(small)),
    }
    watching = ways[way]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watching.encode(["the quick fox", "the lazy dog"])
    with pytest.warns(DataWarning, match=r"tokens of a text are unknown .* of other texts \(en\)"):
        watching.encode(["the fox", "Большая языковая модель"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watching.encode(["Большая языковая модель"])
    assert "matryoshka_vocabulary" in json.loads((tmp_path / "small" / "config.json").read_text())
