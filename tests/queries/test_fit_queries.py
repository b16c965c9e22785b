"""`fit_queries`: the model that it makes, of every family and kind, and its texts."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from st_matryoshka2d import DataWarning, GridResult, Size, TokenTable, align, encode_to_parquet, fit_queries, truncate
from st_matryoshka2d.model.readout import token_table
from tests.support import families
from tests.support.pipelines import KINDS, OTHERS, TEXTS, equal, normalized, readouts
from tests.support.quick import quick

FEW = pytest.mark.filterwarnings("ignore:.* documents tell little")


MANY = [f"{text} {rest}" for text in TEXTS for rest in ("", "the red mat", "over a tree")]


@FEW
@pytest.mark.parametrize("kind", quick([kind for kind in KINDS if "router" not in kind], "mean", "mean, unit", "Dense"))
def test_full_size_stays_bit_for_bit(kind: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    model = KINDS[kind](tiny, tmp_path)
    before, keys = model.encode(OTHERS), set(model.config.to_dict())
    fitted = fit_queries(model, TEXTS)
    assert np.array_equal(fitted.encode(OTHERS), before)
    assert np.array_equal(model.encode(OTHERS), before)
    assert set(model.config.to_dict()) == keys
    assert token_table(model) is None
    assert fitted.model_card_data.model_name.endswith("-queries")
    cut = truncate(fitted, num_layers=0)
    found, whole = cut.encode(TEXTS), model.encode(TEXTS)
    lengths = [np.linalg.norm(rows, axis=1).mean() for rows in (found, whole)]
    assert 0.7 < lengths[0] / lengths[1] < 1.4
    random = np.random.default_rng(0).permutation(len(TEXTS))
    left, right = (rows - rows.mean(0) for rows in (found, whole))
    assert (left * right).sum() > 3 * abs((left * right[random]).sum())


def test_table_finds_documents(fitted: SentenceTransformer) -> None:
    documents = list(dict.fromkeys(TEXTS))
    found = truncate(fitted, num_layers=0).encode_query(documents) @ fitted.encode_document(documents).T
    shuffled = [" ".join(reversed(text.split())) for text in documents]
    assert (found.argmax(1) == np.arange(len(documents))).mean() > 0.5
    np.testing.assert_allclose(
        truncate(fitted, num_layers=0).encode(shuffled), truncate(fitted, num_layers=0).encode(documents), atol=1e-6
    )


@FEW
def test_rows_of_the_tokens_that_occur(tiny: SentenceTransformer, tmp_path: Path) -> None:
    """A smaller table embeds the texts of the fit as the whole one does, and is saved and read as such."""
    seen = [text for text in TEXTS if "red" not in text.split()]
    whole, small = (truncate(fit_queries(tiny, seen, whole_vocabulary=kept), num_layers=0) for kept in (True, False))
    assert small[0].num_embeddings < whole[0].num_embeddings == tiny.tokenizer.vocab_size
    np.testing.assert_allclose(small.encode(seen), whole.encode(seen), atol=1e-6)
    small.half().save_pretrained(str(tmp_path))
    table = TokenTable.load(tmp_path)
    assert table.rows.shape == (small[0].num_embeddings, 32)
    np.testing.assert_allclose(table.encode(TEXTS), small.float().encode(TEXTS), atol=1e-6)


@FEW
def test_prompts_are_in_the_rows(tiny: SentenceTransformer) -> None:
    """Documents and queries get the prompts that sentence-transformers chooses; the table gets none."""
    model = normalized(tiny)
    model.prompts = {"query": "the river ", "passage": "a house "}
    asked: list[tuple[str, str | None]] = []

    class Watching(SentenceTransformer):
        def preprocess(self, inputs: Any, prompt: str | None = None, **kwargs: Any) -> Any:
            asked.extend((text, prompt) for text in inputs)
            return super().preprocess(inputs, prompt=prompt, **kwargs)

    watching = copy.copy(model)
    watching.__class__ = Watching
    queries = ["red bird ran", "blue cat"]
    fitted = fit_queries(watching, TEXTS, queries=[*queries, queries[0]])
    of_documents = [text for text, prompt in asked if prompt == "a house "]
    of_queries = [text for text, prompt in asked if prompt == "the river "]
    assert sorted(of_documents) == sorted(TEXTS)
    assert set(queries) < set(of_queries)
    assert len(of_queries) == len(set(of_queries)), "each once"
    assert len(of_documents) + len(of_queries) == len(asked)
    cut = truncate(fitted, num_layers=0)
    assert cut.prompts == {"query": "", "passage": ""}
    assert np.array_equal(cut.encode_query(OTHERS), cut.encode(OTHERS))
    assert cut.encode("red bird ran") @ model.encode_query("red bird ran") > cut.encode("red bird ran") @ model.encode_query(
        "a"
    )


@FEW
@pytest.mark.parametrize("kind", ["array", "tensor", "memmap", "folder", "npy", "lists"])
def test_existing_embeddings_are_taken(
    kind: str, tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = normalized(tiny)
    rows = model.encode_document(TEXTS)
    given: Any = rows
    if kind == "tensor":
        given = torch.tensor(rows, dtype=torch.float64)
    elif kind == "memmap":
        rows.tofile(tmp_path / "rows")
        given = np.memmap(tmp_path / "rows", np.float32, "r", shape=rows.shape)
    elif kind == "folder":
        monkeypatch.chdir(tmp_path)
        given = "embeddings"  # also the word for an array in messages
        encode_to_parquet(model, TEXTS, given, ["2L-8d", "4L-32d"], shard_size=15, show_progress_bar=False)
    elif kind == "npy":
        given = str(tmp_path / "rows.npy")
        np.save(given, rows.astype(np.float16))
    elif kind == "lists":  # as other programs write them
        given = tmp_path / "rows.parquet"
        pd.DataFrame(
            {"id": range(len(TEXTS)), "text": TEXTS, "vector": list(rows), "tags": [[1] * 32] * len(TEXTS)}
        ).to_parquet(given)
    calls = 0

    class Counting(SentenceTransformer):
        def encode_document(self, inputs: Any, **kwargs: Any) -> Any:  # type: ignore[override]
            nonlocal calls
            calls += len(inputs)
            return super().encode_document(inputs, **kwargs)

    counting = copy.copy(model)
    counting.__class__ = Counting
    fitted = fit_queries(counting, iter(TEXTS), embeddings=given)
    assert calls < 10, "a few rows are compared with the model"
    expected = fit_queries(model, TEXTS)
    np.testing.assert_allclose(
        truncate(fitted, num_layers=0).encode(OTHERS), truncate(expected, num_layers=0).encode(OTHERS), atol=1e-3
    )


def test_empty_rows_are_left_out_with_their_embeddings(tiny: SentenceTransformer) -> None:
    holes = [*MANY[:50], None, " ", *MANY[50:]]
    rows = np.insert(tiny.encode(MANY), [50, 50], 99.0, axis=0)
    with pytest.warns(DataWarning, match=r"documents: 2 of 122 are empty and are left out: 50, 51"):
        found = fit_queries(tiny, holes, embeddings=rows)
    expected = fit_queries(tiny, MANY, embeddings=tiny.encode(MANY))
    assert equal(found, expected)


@FEW
def test_the_callers_inference_mode_changes_nothing(tiny: SentenceTransformer) -> None:
    with torch.inference_mode():
        inside = fit_queries(tiny, TEXTS)
    assert equal(inside, fit_queries(tiny, TEXTS))
    assert not any(parameter.is_inference() for parameter in inside.parameters())


@FEW
def test_documents_may_have_no_token(tiny: SentenceTransformer) -> None:
    """The tokenizer removes control characters."""
    fitted = fit_queries(tiny, ["\x01" * length for length in (1, 2, 3, 4)])
    assert np.isfinite(truncate(fitted, num_layers=0).encode(OTHERS)).all()


@FEW
@pytest.mark.filterwarnings("ignore:.*too few to align", "ignore:This model was not aligned for")
def test_before_and_after_align(fitted: SentenceTransformer) -> None:
    """Aligning keeps the coordinates, so the table stays; and fits the layers as without one."""
    aligned = align(fitted, TEXTS, steps=0)
    assert aligned.config.matryoshka_readouts == [0, 1, 2, 3]
    assert np.array_equal(truncate(aligned, num_layers=0).encode(OTHERS), truncate(fitted, num_layers=0).encode(OTHERS))
    np.testing.assert_allclose(aligned.encode(OTHERS), fitted.encode(OTHERS), atol=1e-6)
    plain = normalized(SentenceTransformer(modules=list(fitted.children())[:2], device="cpu"))
    del plain.config.matryoshka_readouts
    expected = align(plain, TEXTS, steps=0, rotation="keep")
    assert aligned.config.matryoshka_layers == expected.config.matryoshka_layers
    np.testing.assert_allclose(
        truncate(aligned, num_layers=2).encode(OTHERS), truncate(expected, num_layers=2).encode(OTHERS), atol=1e-5
    )
    again = fit_queries(expected, TEXTS)
    assert again.config.matryoshka_readouts == [0, 1, 2, 3]
    assert len(list(again.children())) == len(list(expected.children()))
    assert np.array_equal(truncate(again, num_layers=2).encode(OTHERS), truncate(expected, num_layers=2).encode(OTHERS))
    for model, depths in ((aligned, {1, 2, 3, 4}), (again, {0, 1, 2, 3, 4})):
        assert {size.num_layers for size in GridResult.from_agreement(model).sizes} == depths


def test_agreement_is_declared(fitted: SentenceTransformer) -> None:
    grid = GridResult.from_agreement(fitted)
    assert {size.num_layers for size in grid.sizes} == {0, 4}
    assert grid.score("4L-32d") == 1.0
    assert 0 < grid.score("0L-32d") < 1
    assert grid.sizes[0] == Size(0, 8)


@FEW
def test_copies_pickles_and_repeats(fitted: SentenceTransformer) -> None:
    for copied in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        assert equal(copied, fitted)
        assert np.array_equal(truncate(copied, num_layers=0).encode(OTHERS), truncate(fitted, num_layers=0).encode(OTHERS))
    assert [readout.table is not None for readout in readouts(fitted)] == [True]
    again = fit_queries(fitted, TEXTS)
    assert equal(again, fitted)
    assert not any(weight.requires_grad for weight in token_table(fitted).parameters())  # type: ignore[union-attr]
    assert all(weight.requires_grad for weight in truncate(fitted, num_layers=0).parameters())


@pytest.mark.slow
def test_search_by_a_real_table(shared: Path, minilm: SentenceTransformer) -> None:
    """Of the ten documents that the whole model finds, the table finds most."""
    folder = shared / "data" / "retrieval" / "cranfield"
    documents = list(pd.read_parquet(folder / "corpus.parquet")["text"])[:300]
    queries = list(pd.read_parquet(folder / "queries.parquet")["text"])[:60]
    index = minilm.encode_document(documents)
    fitted = fit_queries(minilm, documents, embeddings=index)
    found, wanted = (
        np.argsort(-(model.encode_query(queries) @ index.T), axis=1)[:, :10]
        for model in (truncate(fitted, num_layers=0), minilm)
    )
    assert np.mean([len({*left} & {*right}) / 10 for left, right in zip(found, wanted, strict=True)]) > 0.5


DOCUMENTS = [f"{text} {word}" for text in families.TEXTS for word in families.WORDS]


@pytest.mark.parametrize("family", quick([*families.CONFIGS, *families.UNNAMED], "bert", "modernbert", "qwen3", "gpt2"))
def test_a_table_finds_the_documents_of_a_family(family: str, tmp_path: Path) -> None:
    model = families.pipeline({**families.CONFIGS, **families.UNNAMED}[family](), tmp_path)
    fitted = fit_queries(model, DOCUMENTS)
    table = truncate(fitted, num_layers=0)
    assert isinstance(table[0], StaticEmbedding)
    index = model.encode_document(DOCUMENTS)
    assert np.array_equal(fitted.encode_document(DOCUMENTS), index)
    found = model.similarity(table.encode_query(DOCUMENTS), index).numpy()
    among_the_closest_tenth = np.mean(
        [(row > row[place] + 1e-6).sum() < len(DOCUMENTS) / 10 for place, row in enumerate(found)]
    )
    assert among_the_closest_tenth > 0.25, "chance is a tenth"
