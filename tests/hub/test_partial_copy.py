"""Folders whose depths keep other layers than the first: the layers that a cut leaves out are not read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_matryoshka2d import align, load, truncate
from st_matryoshka2d.hub.partial import LocalFile
from st_matryoshka2d.model.layers import LayersByDepth
from tests.support.disk import full_disk
from tests.support.families import TEXTS
from tests.support.hub import Hub, change, in_shards
from tests.support.loader import Loader
from tests.support.pipelines import TEXTS as MANY
from tests.support.pipelines import equal, turned

CHOICES: dict[str, str | LayersByDepth] = {"ends": "ends", "a dict": {1: [3], 2: [2, 4]}}
# What a choice keeps at two and three layers of four, counted from 0.
KEPT = {("ends", 2): [0, 3], ("ends", 3): [0, 2, 3], ("a dict", 1): [2], ("a dict", 2): [1, 3]}
BIAS = "encoder.layer.{}.attention.self.query.bias"


@pytest.fixture(scope="module", params=CHOICES)
def saved(request: pytest.FixtureRequest, _tiny_bert: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aligned") / str(request.param)
    turned(align(_tiny_bert, MANY, layers=CHOICES[request.param])).save_pretrained(str(folder))
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """Return a copy to spoil."""
    shutil.copytree(saved, tmp_path / saved.name)
    return tmp_path / saved.name


def depths(folder: Path) -> dict[int, list[int]]:
    return {depth: kept for (name, depth), kept in KEPT.items() if name == folder.name}


def layer_of(name: str) -> int | None:
    return int(name.split(".")[2]) if name.startswith("encoder.layer.") else None


@pytest.mark.parametrize("sharded", [False, True])
def test_a_loaded_cut_equals_one_of_the_whole_model(sharded: bool, folder: Path) -> None:
    if sharded:
        in_shards(folder)
    whole = load(folder, device="cpu")
    for depth in depths(folder):
        expected, found = truncate(whole, num_layers=depth, dim=16), load(folder, num_layers=depth, dim=16, device="cpu")
        assert equal(found, expected)
        assert np.array_equal(found.encode(TEXTS), expected.encode(TEXTS))
        assert type(found[0]) is type(expected[0])
        for name in ("num_hidden_layers", "matryoshka_cut", "matryoshka_layers", "matryoshka_readouts", "name_or_path"):
            assert getattr(found.config, name, None) == getattr(expected.config, name, None), name
        card = found.model_card_data
        assert card.model_name == expected.model_card_data.model_name
        assert card.base_model == expected.model_card_data.base_model


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that are read of the files with all layers."""
    counts: list[int] = []
    parts = LocalFile.parts

    def counted(file: LocalFile, start: int, stop: int) -> Iterator[bytes]:
        for part in parts(file, start, stop):
            counts.append(len(part))
            yield part

    monkeypatch.setattr(LocalFile, "parts", counted)
    return counts


def needed(weights: Path, kept: list[int]) -> int:
    header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
    return header + sum(tensor.nbytes for name, tensor in load_file(weights).items() if layer_of(name) in (None, *kept))


def test_bytes_of_other_layers_are_not_read(saved: Path, read: list[int]) -> None:
    for depth, kept in depths(saved).items():
        read.clear()
        load(saved, num_layers=depth, device="cpu")
        assert sum(read) == needed(saved / "model.safetensors", kept)


def test_shards_with_other_layers_alone_are_not_opened(folder: Path) -> None:
    in_shards(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    whole = load(folder, device="cpu")
    for depth, kept in depths(folder).items():
        expected = truncate(whole, num_layers=depth).encode(TEXTS)
        opened = {shard for name, shard in index.items() if layer_of(name) in (None, *kept)}
        others = {shard: (folder / shard).read_bytes() for shard in set(index.values()) - opened}
        assert others
        for shard in others:
            (folder / shard).write_bytes(b"nothing that can be read")
        assert np.array_equal(load(folder, num_layers=depth, device="cpu").encode(TEXTS), expected)
        for shard, content in others.items():
            (folder / shard).write_bytes(content)


def test_a_missing_tensor_matters_in_a_kept_layer_alone(folder: Path) -> None:
    weights = folder / "model.safetensors"
    before = weights.read_bytes()
    whole = load(folder, device="cpu")
    for depth, kept in depths(folder).items():
        for layer in range(4):
            lacking = {name: tensor for name, tensor in load_file(weights).items() if name != BIAS.format(layer)}
            save_file(lacking, weights, {"format": "pt"})
            if layer in kept:
                place = BIAS.format(kept.index(layer))
                with pytest.raises(ValueError, match=rf"of {folder} \(with layers .* lack '{place}'"):
                    load(folder, num_layers=depth, device="cpu")
            else:
                found = load(folder, num_layers=depth, device="cpu").encode(TEXTS)
                assert np.array_equal(found, truncate(whole, num_layers=depth).encode(TEXTS))
            weights.write_bytes(before)


@pytest.mark.parametrize("saved", ["ends"], indirect=True)
def test_what_cannot_be_divided_is_read_whole(folder: Path) -> None:
    """A pickle, and tensors whose names do not show their layers."""
    expected = truncate(load(folder, device="cpu"), num_layers=2).encode(TEXTS)
    weights = folder / "model.safetensors"

    def other_model(tensors: dict[str, Tensor]) -> None:
        tensors |= {f"other.{name}": tensor.clone() for name, tensor in tensors.items()}

    before = weights.read_bytes()
    change(weights, other_model)
    assert np.array_equal(load(folder, num_layers=2, device="cpu").encode(TEXTS), expected)
    weights.write_bytes(before)
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()
    assert np.array_equal(load(folder, num_layers=2, device="cpu", allow_bin=True).encode(TEXTS), expected)


@pytest.mark.parametrize("saved", ["ends"], indirect=True)
def test_nothing_is_left_behind(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = sorted(saved.rglob("*"))
    load(saved, num_layers=2, device="cpu")
    with full_disk(), pytest.raises(OSError, match=r"Make room there.*TMPDIR"):
        load(saved, num_layers=2, device="cpu")
    assert not list(tmp_path.iterdir())
    assert sorted(saved.rglob("*")) == before


@pytest.mark.parametrize("saved", ["ends"], indirect=True)
def test_of_a_whole_model_in_the_cache_only_the_cut_is_read(
    saved: Path, read: list[int], hub: Hub, loader: Loader, offline: Loader
) -> None:
    name = f"org/{saved.name.replace(' ', '-')}"
    shutil.copytree(saved, hub.root / name)
    hub.reset()
    assert "error" not in loader.load(name)
    hub.reset()
    expected = truncate(load(saved, device="cpu"), num_layers=2).encode(TEXTS[:2])
    for process in (loader, offline):
        read.clear()
        found = process.load(name, num_layers=2)
        assert "error" not in found, found
        assert np.array_equal(np.asarray(found["embedding"], dtype=np.float32), expected)
        assert found["called"] == [name] * 2
        assert found["warnings"] == []
        assert sum(read) == needed(saved / "model.safetensors", [0, 3])
    assert not [path for path, _ in hub.asked if path.endswith("model.safetensors")]


@pytest.mark.parametrize("saved", ["ends"], indirect=True)
def test_a_broken_file_is_named_where_it_is(folder: Path) -> None:
    files = ["model.safetensors", "2_Dense/model.safetensors", "2_Dense/readout-2L.safetensors", "1_Pooling/config.json"]
    for file in [*files, "tokenizer.json"]:
        before = (folder / file).read_bytes()
        (folder / file).write_bytes(before[:-5])
        with pytest.raises(ValueError, match=f"{folder / file}"):
            load(folder, num_layers=2, device="cpu")
        (folder / file).write_bytes(before)
    change(folder / "2_Dense" / "model.safetensors", lambda tensors: tensors.pop("linear.bias"))
    with pytest.raises(ValueError, match=f"The weights of {folder} do not fit"):
        load(folder, num_layers=2, device="cpu")
