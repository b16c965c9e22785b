"""Readouts and routes on the Hub: a cut downloads only its own readout, and a side only its own weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import DataWarning, align, asymmetric, fit_queries, load, truncate
from tests.support.hub import Hub, pieces_in
from tests.support.loader import Loader
from tests.support.pipelines import OTHERS, TEXTS, normalized, routed, turned
from tests.support.quick import quick

SENTENCES = ["the cat sat on the mat", "a dog"]


@pytest.mark.parametrize("layers", quick(["first", "ends"], "ends"))
def test_only_the_readout_of_the_depth_is_fetched(
    layers: str, hub: Hub, loader: Loader, offline: Loader, tiny: SentenceTransformer
) -> None:
    aligned = turned(align(normalized(tiny), TEXTS, layers=layers))
    name = f"org/aligned-{layers}"
    folder = hub.root / name
    aligned.save_pretrained(str(folder))
    hub.reset()
    for depth in (2, 3):
        expected = truncate(aligned, num_layers=depth, dim=8).encode(SENTENCES).tolist()
        found = loader.load(name, num_layers=depth, dim=8)
        assert found["embedding"] == expected, found
        sent = {name for name in hub.sent if name.startswith("readout")}
        assert sent == {f"readout-{depth}L.safetensors"}
        assert (
            hub.sent[f"readout-{depth}L.safetensors"]
            == (folder / "2_Dense" / f"readout-{depth}L.safetensors").stat().st_size
        )
        block = sum(value.nbytes for value in aligned[0].model.encoder.layer[0].parameters())
        most = (folder / "model.safetensors").stat().st_size - (4 - depth) * block
        assert hub.sent["model.safetensors"] < most + 8192, "the header is read once more, in pieces"
        hub.reset()
        for process in (loader, offline):
            assert process.load(name, num_layers=depth, dim=8)["embedding"] == expected
        assert not [name for name in hub.sent if name.endswith(".safetensors")]
    missing = offline.load(name, num_layers=1, dim=8)
    assert "error" in missing
    assert not any("readout" in name for name in pieces_in(loader.home))


def test_whole_model_has_all_readouts(hub: Hub, loader: Loader, offline: Loader, tiny: SentenceTransformer) -> None:
    aligned = turned(align(tiny, TEXTS))
    aligned.save_pretrained(str(hub.root / "org" / "whole"))
    hub.reset()
    assert loader.load("org/whole")["embedding"] == aligned.encode(SENTENCES).tolist()
    assert {name for name in hub.sent if name.startswith("readout")} == {
        f"readout-{depth}L.safetensors" for depth in (1, 2, 3)
    }
    for depth in (1, 2, 3):
        expected = truncate(aligned, num_layers=depth, dim=8).encode(SENTENCES).tolist()
        assert offline.load("org/whole", num_layers=depth, dim=8)["embedding"] == expected


@pytest.mark.filterwarnings("ignore:.*documents tell little")
def test_only_the_table_is_fetched_for_depth_0(hub: Hub, loader: Loader, offline: Loader, tiny: SentenceTransformer) -> None:
    fitted = fit_queries(normalized(tiny), TEXTS)
    folder = hub.root / "org" / "queries"
    fitted.save_pretrained(str(folder))
    hub.reset()
    expected = truncate(fitted, num_layers=0, dim=8).encode(SENTENCES).tolist()
    for process in (loader, offline):
        found = process.load("org/queries", num_layers=0, dim=8)
        assert found.get("embedding") == expected, found
    files = {path.name: path.stat().st_size for path in folder.glob("2_Dense/*.safetensors")}
    assert {name: size for name, size in hub.sent.items() if name.endswith(".safetensors")} == files
    assert not any(path.startswith("tokenizer") for path, _ in hub.asked)
    hub.reset()
    assert loader.load("org/queries", num_layers=2)["embedding"] == truncate(fitted, num_layers=2).encode(SENTENCES).tolist()
    assert "readout-0L.safetensors" not in hub.sent


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
