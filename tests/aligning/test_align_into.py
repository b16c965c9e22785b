"""Models in the space of another model: computed, cut, saved and loaded like aligned ones."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize

from st_matryoshka2d import DataWarning, GridResult, Size, align, encode_sizes, encode_to_parquet, load, truncate
from st_matryoshka2d.model.declaration import Declaration
from tests.support import families
from tests.support.pipelines import OTHERS, TEXTS, normalized

pytestmark = pytest.mark.filterwarnings("ignore:This model was not aligned for")

SIZES = [Size(depth, dim) for depth in (1, 2, 3, 4) for dim in (8, 24)]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    """A model of other weights, whose embeddings have 24 dims and length 1."""
    folder = tmp_path_factory.mktemp("other")
    return families.pipeline(families.CONFIGS["bert"](), folder / "weights", "mean", dense=24, normalize=True)


@pytest.fixture
def mapped(tiny: SentenceTransformer, other: SentenceTransformer) -> SentenceTransformer:
    return align(tiny, TEXTS, into=other)


def test_every_size_is_in_the_other_space_however_it_is_computed(mapped: SentenceTransformer, tmp_path: Path) -> None:
    by_size = encode_sizes(mapped, OTHERS, SIZES)
    mapped.save_pretrained(str(tmp_path / "mapped"))
    loaded = load(tmp_path / "mapped", device="cpu")
    for size in SIZES:
        cut = truncate(mapped, num_layers=size.num_layers, dim=size.dim)
        np.testing.assert_allclose(by_size[size], cut.encode(OTHERS), atol=1e-6)
        again = truncate(loaded, num_layers=size.num_layers, dim=size.dim).encode(OTHERS)
        np.testing.assert_allclose(by_size[size], again, atol=1e-6)
    part = load(tmp_path / "mapped", num_layers=2, device="cpu")
    np.testing.assert_allclose(part.encode(OTHERS), by_size[Size(2, 24)], atol=1e-6)


def test_plain_sentence_transformers_loads_the_whole_and_a_cut(mapped: SentenceTransformer, tmp_path: Path) -> None:
    for name, model in (("whole", mapped), ("cut", truncate(mapped, num_layers=3))):
        model.save_pretrained(str(tmp_path / name))
        plain = SentenceTransformer(str(tmp_path / name), device="cpu")
        assert [type(module).__name__ for module in plain][-3:] == ["Dense", "Dense", "Normalize"]
        np.testing.assert_allclose(plain.encode(OTHERS), model.encode(OTHERS), atol=1e-6)


def test_queries_find_their_texts_in_the_index_of_the_other_model(
    tiny: SentenceTransformer, other: SentenceTransformer, mapped: SentenceTransformer
) -> None:
    """Random networks share little but the words of a text, so not all are found; by chance, it would be one of 40."""
    index, rows = torch.from_numpy(other.encode(TEXTS)), torch.arange(len(TEXTS))
    for depth in (1, 4):
        asked = torch.from_numpy(truncate(mapped, num_layers=depth).encode(TEXTS))
        assert float(((asked @ index.T).argmax(1) == rows).float().mean()) > 0.5


@pytest.mark.parametrize("kind", ["array", "tensor", "file"])
def test_existing_embeddings_stand_for_the_model(
    kind: str, tiny: SentenceTransformer, other: SentenceTransformer, mapped: SentenceTransformer, tmp_path: Path
) -> None:
    embeddings: Any = other.encode(TEXTS)
    if kind == "tensor":
        embeddings = torch.from_numpy(embeddings)
    if kind == "file":
        embeddings = tmp_path / "index"
        encode_to_parquet(other, TEXTS, embeddings, ["2L-8d", "4L-24d"], shard_size=7, show_progress_bar=False)
    found = align(tiny, TEXTS, into=embeddings)
    np.testing.assert_allclose(found.encode(OTHERS), mapped.encode(OTHERS), atol=1e-5)


def test_embeddings_have_a_row_for_empty_and_for_repeated_texts(
    tiny: SentenceTransformer, other: SentenceTransformer, mapped: SentenceTransformer
) -> None:
    texts = [*TEXTS[:5], None, TEXTS[0], *TEXTS[5:]]
    rows = other.encode([text or "" for text in texts])
    rows[5] = 0
    with pytest.warns(DataWarning, match="1 of 42 are empty"):
        found = align(tiny, texts, into=rows)  # type: ignore[arg-type]
    assert found.get_embedding_dimension() == 24
    again = align(tiny, [text for text in texts if text], into=other)
    np.testing.assert_allclose(found.encode(OTHERS), again.encode(OTHERS), atol=1e-5)


def test_each_model_embeds_with_its_own_prompts(tiny: SentenceTransformer, other: SentenceTransformer) -> None:
    prompted = copy.deepcopy(other)
    prompted.prompts = {"query": "the red ", "document": ""}
    tiny.prompts = {"query": "a dog ", "document": "a cat "}
    texts = {"query": TEXTS[:20], "document": TEXTS[20:]}
    rows = {name: prompted.encode(part, prompt_name=name) for name, part in texts.items()}
    found, expected = (align(tiny, texts, into=into) for into in (prompted, rows))
    np.testing.assert_allclose(found.encode(OTHERS), expected.encode(OTHERS), atol=1e-5)
    bare = align(tiny, texts, into={name: prompted.encode(part) for name, part in texts.items()})
    assert np.abs(found.encode(OTHERS) - bare.encode(OTHERS)).max() > 1e-3


def test_lengths_are_those_of_the_other_space(tiny: SentenceTransformer, other: SentenceTransformer) -> None:
    rows = 3 * other.encode(TEXTS) + 1
    found = align(normalized(tiny), TEXTS, into=rows)
    assert not any(isinstance(module, Normalize) for module in found)
    lengths = np.linalg.norm(found.encode(TEXTS), axis=1).mean()
    assert lengths == pytest.approx(np.linalg.norm(rows, axis=1).mean(), rel=0.1)


def test_agreement_is_declared_for_every_size(mapped: SentenceTransformer) -> None:
    declared = Declaration.of(mapped.config).agreement
    assert set(SIZES) <= set(declared)
    assert 0.3 < declared[Size(4, 24)] <= 1
    assert GridResult.from_agreement(mapped).score("4L-24d") == declared[Size(4, 24)]
    assert Declaration.of(truncate(mapped, num_layers=2).config).agreement[Size(2, 24)] == declared[Size(2, 24)]


def test_embeddings_of_other_texts_are_told(tiny: SentenceTransformer) -> None:
    rows = np.random.default_rng(0).normal(size=(len(TEXTS), 24))
    with pytest.warns(DataWarning, match="hardly relate to the texts"):
        align(tiny, TEXTS, into=rows)


def test_readouts_of_an_alignment_are_replaced(tiny: SentenceTransformer, other: SentenceTransformer) -> None:
    aligned = align(tiny, TEXTS, layers="first", steps=5)
    before = aligned.encode(OTHERS)
    found, expected = align(aligned, TEXTS, into=other), align(tiny, TEXTS, into=other, layers="first")
    sizes = [Size(2, 24), Size(4, 24)]
    for size, rows in encode_sizes(expected, OTHERS, sizes).items():
        np.testing.assert_allclose(encode_sizes(found, OTHERS, [size])[size], rows, atol=1e-5)
    np.testing.assert_array_equal(aligned.encode(OTHERS), before)
    assert aligned.config.matryoshka_readouts == [1, 2, 3]


def test_a_decoder_is_mapped(other: SentenceTransformer, tmp_path: Path) -> None:
    decoder = families.pipeline(families.CONFIGS["qwen3"](), tmp_path / "weights", "lasttoken", dense=None, normalize=False)
    found = align(decoder, TEXTS, into=other)
    for size, rows in encode_sizes(found, OTHERS, [Size(2, 24), Size(4, 24)]).items():
        np.testing.assert_allclose(rows, truncate(found, size).encode(OTHERS), atol=1e-5)
        assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


@pytest.mark.slow
def test_real_queries_search_the_index_of_an_earlier_version(minilm: SentenceTransformer) -> None:
    """The version with other coordinates and one layer less stands for the former one."""
    things = ["a cat", "my car", "rain", "the piano", "soup", "a tall tree", "the news", "a red bus", "cold milk", "chess"]
    rests = ["at home", "in town", "today", "again", "is good", "for two", "and a dog", "at night", "in May", "is gone"]
    texts = [f"{thing} {rest}" for thing in things for rest in rests]
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(384, 384)))
    index = truncate(align(minilm, texts, rotation="keep"), num_layers=5).encode(texts) @ turn
    with pytest.warns(DataWarning, match="100 texts are too few"):
        found = align(minilm, texts, into=index.astype(np.float32))
    best = (found.encode(texts) @ index.T).argmax(1)
    assert (best == np.arange(len(texts))).mean() > 0.9
