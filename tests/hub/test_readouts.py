"""Readouts on the Hub: a cut downloads only its own."""

from __future__ import annotations

import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import align, fit_queries, truncate
from tests.support.hub import Hub, pieces_in
from tests.support.loader import Loader
from tests.support.pipelines import TEXTS, normalized, turned
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
