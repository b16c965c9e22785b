"""An asymmetric model equals the two sizes that it is made of, also where this package cannot be imported."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Router
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from st_matryoshka2d import DataWarning, Size, TruncatedTransformer, align, asymmetric, encode_sizes, load, truncate
from st_matryoshka2d.model.identity import model_revision
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.sides import sides_of
from st_matryoshka2d.queries.fit_queries import with_table
from tests import ROOT
from tests.support import families
from tests.support.pipelines import OTHERS, TEXTS, normalized, routed, turned

PROMPTS: dict[str, str | None] = {"query": "the cat ", "passage": "a dog "}


@pytest.fixture
def aligned(tiny: SentenceTransformer) -> SentenceTransformer:
    """A model of 4 layers x 32 with prompts, whose readouts all matter."""
    model = turned(align(normalized(tiny), TEXTS, steps=0))
    model.prompts = dict(PROMPTS)
    return model


@pytest.mark.parametrize(
    ("query", "document", "sizes"),
    [("2L-8d", None, (2, 4, 8)), (1, "3L-16d", (1, 3, 16)), ("2L-16d", "4L-8d", (2, 4, 8)), (2, None, (2, 4, 32))],
)
def test_each_side_equals_its_size(
    aligned: SentenceTransformer, query: str | int, document: str | None, sizes: tuple[int, int, int]
) -> None:
    made = asymmetric(aligned, query, document)
    few, many = (truncate(aligned, num_layers=depth, dim=sizes[2]) for depth in sizes[:2])
    assert np.array_equal(made.encode_query(OTHERS), few.encode_query(OTHERS))
    assert np.array_equal(made.encode_document(OTHERS), many.encode_document(OTHERS))
    assert np.array_equal(made.encode(OTHERS), many.encode(OTHERS)), "without a task, texts are documents"
    assert not np.allclose(made.encode_query(OTHERS), few.encode(OTHERS)), "the prompt matters"
    assert made.get_embedding_dimension() == sizes[2]


@pytest.mark.parametrize("document", [None, "4L-16d"])
def test_a_trained_cut_embeds_queries(aligned: SentenceTransformer, document: str | None) -> None:
    cut = copy.deepcopy(truncate(aligned, num_layers=2))
    with torch.no_grad():
        for parameter in cut.parameters():
            parameter.add_(0.01)
    made = asymmetric(aligned, cut, document)
    width = 32 if document is None else 16
    assert np.array_equal(made.encode_query(OTHERS), cut.encode_query(OTHERS)[:, :width])
    assert np.array_equal(made.encode_document(OTHERS), aligned.encode_document(OTHERS)[:, :width])
    trained = cut[0].model.get_input_embeddings().weight
    assert made[0].sub_modules["query"][0].model.get_input_embeddings().weight.data_ptr() == trained.data_ptr()


@pytest.mark.parametrize("width", [8, None])
def test_a_model_that_returns_fewer_dims_takes_an_encoder_of_queries(
    aligned: SentenceTransformer, width: int | None
) -> None:
    aligned.truncate_dim = 16
    cut = truncate(aligned, num_layers=2)
    cut.truncate_dim = width
    made, dims = asymmetric(aligned, cut), width or 16
    assert np.array_equal(made.encode_query(OTHERS), cut.encode_query(OTHERS)[:, :dims])
    assert np.array_equal(made.encode_document(OTHERS), aligned.encode_document(OTHERS)[:, :dims])
    wide = SentenceTransformer(modules=[*aligned.children(), Dense(32, 24)], device="cpu")
    with pytest.raises(ValueError, match="returns 24 dimensions and the model 32"):
        asymmetric(aligned, wide)


@pytest.mark.slow
def test_a_process_without_this_package_computes_the_same(aligned: SentenceTransformer, tmp_path: Path) -> None:
    asymmetric(aligned, "2L-8d").save_pretrained(str(tmp_path / "made"))
    script = f"""
import sys
sys.modules["st_matryoshka2d"] = None
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer({str(tmp_path / "made")!r}, device="cpu")
np.savez({str(tmp_path / "found.npz")!r}, query=model.encode_query({OTHERS}), document=model.encode_document({OTHERS}))
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
    with np.load(tmp_path / "found.npz") as found:
        for name, depth in (("query", 2), ("document", 4)):
            expected = getattr(truncate(aligned, num_layers=depth, dim=8), f"encode_{name}")(OTHERS)
            np.testing.assert_allclose(found[name], expected, atol=1e-6)


def test_weights_are_shared_and_the_model_stays(aligned: SentenceTransformer) -> None:
    before, state = aligned.encode(OTHERS), {name: value.clone() for name, value in aligned.state_dict().items()}
    config, prompts = aligned.config.to_dict(), dict(aligned.prompts)
    made = asymmetric(aligned, 2)
    made.encode_query(OTHERS)
    owned = {weight.data_ptr() for weight in aligned.parameters()}
    assert {weight.data_ptr() for weight in made.parameters()} <= owned
    assert aligned.config.to_dict() == config
    assert aligned.prompts == prompts
    assert all(torch.equal(value, aligned.state_dict()[name]) for name, value in state.items())
    assert np.array_equal(aligned.encode(OTHERS), before)
    assert encode_sizes(aligned, OTHERS, ["2L-8d"])[Size(2, 8)].shape == (4, 8), "its readouts are still there"


def test_one_depth_for_both_sides_is_saved_once(tiny: SentenceTransformer, tmp_path: Path) -> None:
    """No alignment is needed: one depth is one space."""
    with pytest.warns(DataWarning, match="Nothing says"):
        made = asymmetric(tiny, 2, 2)
    made.save_pretrained(str(tmp_path))
    assert len([*tmp_path.rglob("model.safetensors")]) == 1
    assert np.array_equal(made.encode_query(OTHERS), truncate(tiny, num_layers=2).encode(OTHERS))
    found = encode_sizes(made, OTHERS, ["1L-8d"])[Size(1, 8)]
    np.testing.assert_allclose(found, truncate(tiny, num_layers=1, dim=8).encode(OTHERS), atol=1e-6)


def test_models_with_a_router_or_a_depth_of_their_own(aligned: SentenceTransformer, tiny: SentenceTransformer) -> None:
    whole = align(routed(tiny, shared=False), TEXTS, steps=0)
    made = asymmetric(whole, "2L-8d")
    assert np.array_equal(made.encode_query(OTHERS), truncate(whole, num_layers=2, dim=8).encode_query(OTHERS))
    assert np.array_equal(made.encode_document(OTHERS), truncate(whole, num_layers=4, dim=8).encode_document(OTHERS))
    plain = asymmetric(aligned, 2)
    aligned[0] = TruncatedTransformer.from_transformer(aligned[0], num_layers=1)
    made = asymmetric(aligned, 2)
    assert not [module for module in made.modules() if isinstance(module, TruncatedTransformer)]
    assert np.array_equal(made.encode_document(OTHERS), plain.encode_document(OTHERS))


def test_dot_products_of_unit_vectors_stay_right_with_fewer_dims(tiny: SentenceTransformer) -> None:
    for unit, name in ((True, "cosine"), (False, "dot")):
        model = align(normalized(tiny) if unit else tiny, TEXTS, steps=0)
        model.similarity_fn_name = "dot"
        made = asymmetric(model, 2)
        assert made.similarity_fn_name == name
        queries, documents = made.encode_query(OTHERS), made.encode_document(OTHERS)
        np.testing.assert_allclose(made.similarity(queries, documents), queries @ documents.T, atol=1e-5)
        assert model.similarity_fn_name == "dot"
        few = made.encode_query(OTHERS, truncate_dim=4), made.encode_document(OTHERS, truncate_dim=4)
        if unit:
            few = tuple(side / np.linalg.norm(side, axis=1, keepdims=True) for side in few)  # type: ignore[assignment]
        np.testing.assert_allclose(made.similarity(*few), few[0] @ few[1].T, atol=1e-5)


def test_names_cards_and_revisions(aligned: SentenceTransformer) -> None:
    aligned.model_card_data.license, aligned.model_card_data.language = "mit", ["en"]
    aligned.model_card_data.set_model_id("me/model")
    one, other = asymmetric(aligned, 1), asymmetric(aligned, 2)
    assert one.model_card_data.model_name == "me/model-1L-32d-query-4L-32d-document"
    assert (one.model_card_data.license, one.model_card_data.language) == ("mit", ["en"])
    assert "asymmetric" in one.model_card_data.tags
    assert "asymmetric" not in aligned.model_card_data.tags
    revisions = [model_revision(each) for each in (one, other, truncate(one, dim=8))]
    revisions.append(model_revision(asymmetric(aligned, 1)))
    assert len(set(revisions)) == 3
    assert revisions[0] == revisions[3]
    one.prompts["query"] = "red "
    assert model_revision(one) != revisions[0]


def test_dims_of_the_result_can_be_cut(aligned: SentenceTransformer, tmp_path: Path) -> None:
    made = asymmetric(aligned, 2)
    small = truncate(made, dim=8)
    assert np.array_equal(small.encode_query(OTHERS), made.encode_query(OTHERS)[:, :8])
    assert np.array_equal(small.encode_document(OTHERS), made.encode_document(OTHERS)[:, :8])
    assert made.truncate_dim is None
    small.save_pretrained(str(tmp_path))
    assert load(tmp_path, device="cpu").encode_query("cat").shape == (8,)


def test_only_a_router_for_queries_and_documents_has_sides(aligned: SentenceTransformer, tiny: SentenceTransformer) -> None:
    assert list(sides_of(asymmetric(aligned, 2))) == ["query", "document"]
    shallow, deep = list(truncate(tiny, num_layers=2).children()), list(tiny.children())
    others = Router({"red": shallow, "blue": deep})  # type: ignore[dict-item]
    for model in (tiny, routed(tiny, shared=False), SentenceTransformer(modules=[others], device="cpu")):
        assert sides_of(model) == {}


def test_a_token_table_embeds_queries(aligned: SentenceTransformer, tmp_path: Path) -> None:
    made = asymmetric(tabled(aligned), "0L-8d")
    assert made.prompts["query"] == ""
    assert made.prompts["document"] == aligned.prompts["passage"]
    table, whole = truncate(tabled(aligned), "0L-8d"), truncate(aligned, dim=8)
    made.save_pretrained(str(tmp_path))
    side = load(tmp_path, route="query", device="cpu")
    again = SentenceTransformer(str(tmp_path), device="cpu")
    for other in (made, again, load(tmp_path, device="cpu")):
        assert np.array_equal(other.encode_query(OTHERS), table.encode(OTHERS))
        assert np.array_equal(other.encode_document(OTHERS), whole.encode_document(OTHERS))
    assert np.array_equal(side.encode(OTHERS), table.encode(OTHERS))
    with pytest.warns(DataWarning, match="not aligned for 4L-4d"):
        small = truncate(made, dim=4)
    assert np.array_equal(small.encode_query(OTHERS), table.encode(OTHERS)[:, :4])
    assert len({model_revision(each) for each in (made, small, side, asymmetric(aligned, "1L-8d"))}) == 4


def tabled(model: SentenceTransformer) -> SentenceTransformer:
    """Add a table of random rows."""
    rows = torch.randn(len(families.VOCABULARY), 32, generator=torch.Generator().manual_seed(0))
    return with_table(Pipeline.of(model), StaticEmbedding(model.tokenizer.backend_tokenizer, rows), {}, {}).model
