"""Models with a Router for queries and documents: all routes are cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Router
from torch import nn

from st_matryoshka2d import Size, encode_sizes, load, truncate
from tests.support.families import TEXTS
from tests.support.pipelines import routed


@pytest.mark.parametrize("shared", [True, False])
def test_every_route_is_cut_exactly(tiny: SentenceTransformer, shared: bool, tmp_path: Path) -> None:
    model = routed(tiny, shared=shared)
    cut = truncate(model, num_layers=2, dim=8)
    cut.save_pretrained(str(tmp_path / "cut"))
    again = SentenceTransformer(str(tmp_path / "cut"), device="cpu")
    loaded = load(save(model, tmp_path / "full"), num_layers=2, dim=8, device="cpu")
    for task in ("query", "document"):
        way = model[0].sub_modules[task]
        plain = SentenceTransformer(modules=[*way, Normalize()], device="cpu")
        expected = truncate(plain, num_layers=2, dim=8).encode(TEXTS)
        for other in (cut, again, loaded):
            assert np.array_equal(other.encode(TEXTS, task=task), expected)
    differs = not np.allclose(cut.encode(TEXTS, task="query"), cut.encode(TEXTS, task="document"))
    assert differs is not shared
    assert len({id(way[0]) for way in cut[0].sub_modules.values()}) == (1 if shared else 2)


@pytest.mark.parametrize("shared", [True, False])
def test_every_route_is_embedded_at_many_sizes_at_once(tiny: SentenceTransformer, shared: bool) -> None:
    model = routed(tiny, shared=shared)
    for task in ("query", "document"):
        for size, found in encode_sizes(model, TEXTS, ["1L-4d", "3L-32d", "4L-8d"], task=task).items():
            expected = truncate(model, num_layers=size.num_layers, dim=size.dim).encode(TEXTS, task=task)
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_cut_shares_memory_and_leaves_the_model(tiny: SentenceTransformer) -> None:
    model = routed(tiny, shared=False)
    before = model.encode(TEXTS, task="query")
    cut = truncate(model, num_layers=1)
    owned = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in cut.parameters()} <= owned
    assert np.array_equal(model.encode(TEXTS, task="query"), before)


def test_routes_of_different_depth_are_refused(tiny: SentenceTransformer) -> None:
    shallow = truncate(tiny, num_layers=2)
    router = Router.for_query_document(query_modules=list(shallow.children()), document_modules=list(tiny.children()))
    model = SentenceTransformer(modules=[router], device="cpu")
    with pytest.raises(ValueError, match=r"differ in depth.*'query': 2.*'document': 4"):
        encode_sizes(model, TEXTS, ["1L-8d"])
    with pytest.raises(ValueError, match="cannot be cut in depth"):
        truncate(model, num_layers=1)


def test_a_route_without_a_transformer_is_refused(tiny: SentenceTransformer) -> None:
    class Table(nn.Identity):
        modalities = ("text",)

    router = Router({"query": [Table()], "document": list(tiny.children())})  # type: ignore[list-item]
    with pytest.raises(ValueError, match="starts with Table"):
        truncate(SentenceTransformer(modules=[router], device="cpu"), dim=Size(1, 8).dim)


def save(model: SentenceTransformer, folder: Path) -> Path:
    model.save_pretrained(str(folder))
    return folder
