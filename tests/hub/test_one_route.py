"""One route of a Router is loaded without a byte of the weights of the other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import DataWarning, align, asymmetric, load
from tests.support.hub import Hub
from tests.support.loader import Loader
from tests.support.pipelines import OTHERS, TEXTS, normalized, routed, turned

SENTENCES = ["the cat sat on the mat", "a dog"]


@pytest.fixture
def made(tiny: SentenceTransformer) -> SentenceTransformer:
    aligned = turned(align(normalized(tiny), TEXTS, steps=0))
    aligned.prompts = {"query": "the cat ", "document": "a dog "}
    return asymmetric(aligned, "2L-8d")


def test_a_service_downloads_one_side(made: SentenceTransformer, hub: Hub, loader: Loader, offline: Loader) -> None:
    folder = hub.root / "org" / "asymmetric"
    made.save_pretrained(str(folder))
    for route, layers, whole in (("query", 2, made.encode_query), ("document", 4, made.encode_document)):
        hub.reset()
        found = loader.load("org/asymmetric", route=route)
        assert found["embedding"] == whole(SENTENCES).tolist(), found
        assert found["layers"] == layers
        weights = {path.stat().st_size for path in folder.rglob("*.safetensors") if path.parent.name.startswith(route)}
        assert hub.sent["model.safetensors"] == sum(weights), "both files of a side have this name"
        assert offline.load("org/asymmetric", route=route)["embedding"] == found["embedding"]


def test_the_files_of_the_other_side_are_not_needed(made: SentenceTransformer, tmp_path: Path) -> None:
    made.save_pretrained(str(tmp_path))
    (tmp_path / "document_0_Transformer" / "model.safetensors").write_bytes(b"broken")
    side = load(tmp_path, route="query", device="cpu")
    assert np.array_equal(side.encode(OTHERS), made.encode_query(OTHERS))
    assert np.array_equal(side.encode_query(OTHERS), made.encode_query(OTHERS))
    assert side.model_card_data.model_name.endswith("-query")
    with pytest.raises(ValueError, match="document_0_Transformer"):
        load(tmp_path, route="document", device="cpu")


def test_a_side_is_a_plain_model(made: SentenceTransformer, tmp_path: Path) -> None:
    made.save_pretrained(str(tmp_path / "made"))
    with pytest.warns(DataWarning, match="not aligned for 2L-4d"):
        side = load(tmp_path / "made", dim=4, route="query", device="cpu")
    side.save_pretrained(str(tmp_path / "side"))
    assert "Router" not in (tmp_path / "side" / "modules.json").read_text(encoding="utf-8")
    again = SentenceTransformer(str(tmp_path / "side"), device="cpu")
    assert np.array_equal(again.encode(OTHERS), made.encode_query(OTHERS)[:, :4])


def test_a_route_of_a_router_with_one_depth(tiny: SentenceTransformer, tmp_path: Path) -> None:
    model = align(routed(tiny, shared=False), TEXTS, steps=0)
    model.save_pretrained(str(tmp_path))
    side = load(tmp_path, "2L-8d", route="query", device="cpu")
    expected = load(tmp_path, "2L-8d", device="cpu").encode_query(OTHERS)
    assert np.array_equal(side.encode(OTHERS), expected), "with its own readout"


def test_a_route_that_is_not_there_is_refused(made: SentenceTransformer, tiny: SentenceTransformer, tmp_path: Path) -> None:
    made.save_pretrained(str(tmp_path / "made"))
    with pytest.raises(ValueError, match="no route 'queries', only 'document', 'query'"):
        load(tmp_path / "made", route="queries")
    tiny.save_pretrained(str(tmp_path / "tiny"))
    with pytest.raises(ValueError, match="no route 'query', as it has no Router: leave route out"):
        load(tmp_path / "tiny", route="query")
    config = tmp_path / "made" / "router_config.json"
    text = json.loads(config.read_text(encoding="utf-8"))
    text["structure"]["query"][0] = "../tiny"
    config.write_text(json.dumps(text), encoding="utf-8")
    with pytest.raises(ValueError, match=r"\.\./tiny"):
        load(tmp_path / "made", route="query")
