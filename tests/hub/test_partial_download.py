"""Partial downloads fetch only what a cut needs, only once, and equal a cut of the whole model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from huggingface_hub import scan_cache_dir
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import truncate
from st_matryoshka2d.hub.made_once import made_once
from tests.support import families
from tests.support.disk import full_disk
from tests.support.hub import Hub, in_old_layout, pieces_in
from tests.support.loader import Loader
from tests.support.pipelines import elastic
from tests.support.quick import quick

SENTENCES = ["the cat sat on the mat", "a dog"]


def deep(folder: Path) -> None:
    """Save a BERT as deep as BERT-base, but narrower, in half precision."""
    config = hf.BertConfig(
        vocab_size=len(families.VOCABULARY), hidden_size=256, intermediate_size=1024, num_attention_heads=4, pad_token_id=0
    )
    families.build(config).half().save_pretrained(folder)
    families.tokenizer().save_pretrained(folder)


def family(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        families.pipeline(families.CONFIGS[name](), folder.parent / "weights").save_pretrained(str(folder))
        shutil.rmtree(folder.parent / "weights")

    return make


def sharded(folder: Path) -> None:
    deep(folder)
    hf.AutoModel.from_pretrained(folder, dtype=torch.float16).save_pretrained(folder, max_shard_size="2MB")
    (folder / "model.safetensors").unlink()


def with_language_model_head(folder: Path) -> None:
    """Save a model whose names start with `bert.`, with tensors that embeddings do not need."""
    torch.manual_seed(0)
    hf.BertForMaskedLM(families.CONFIGS["bert"]()).save_pretrained(folder)
    families.tokenizer().save_pretrained(folder)


def folder_of_its_own(folder: Path) -> None:
    family("bert")(folder)
    in_old_layout(folder)


def mixed(folder: Path) -> None:
    """Save tensors with several dtypes, in an order that no library writes."""
    family("bert")(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith("dense.weight"):
            tensors[name] = tensors[name].half()
    tensors["embeddings.position_ids"] = torch.arange(64)[None]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


REPOSITORIES: dict[str, Callable[[Path], None]] = {
    "deep": deep,
    "sharded": sharded,
    "head": with_language_model_head,
    "old": folder_of_its_own,
    "mixed": mixed,
    **{name: family(name) for name in ("modernbert", "distilbert", "t5-encoder", "qwen3")},
}


def needed_bytes(folder: Path, upper: Callable[[int], bool]) -> tuple[int, int]:
    """Return the bytes of a checkpoint's tensors without upper blocks, and of all its headers."""
    tensors = headers = 0
    for path in folder.glob("model*.safetensors"):
        headers += 8 + int.from_bytes(path.read_bytes()[:8], "little")
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                numbers = [int(step) for step in name.split(".") if step.isdigit()]
                if not (numbers and upper(numbers[0])):
                    tensor = file.get_tensor(name)
                    tensors += tensor.numel() * tensor.element_size()
    return tensors, headers


@pytest.mark.parametrize("name", quick(REPOSITORIES, "sharded", "mixed"))
def test_downloads_only_needed_bytes_once(name: str, hub: Hub, loader: Loader, offline: Loader, tmp_path: Path) -> None:
    folder = hub.root / "org" / name
    REPOSITORIES[name](folder)
    transformer = folder / "0_Transformer" if name == "old" else folder
    hub.reset()
    loaded = loader.load(f"org/{name}", num_layers=2, dim=8)
    assert "error" not in loaded, loaded
    tensors, headers = needed_bytes(transformer, lambda block: block >= 2)
    weights = {path.name for path in transformer.glob("model*.safetensors")}
    sent = sum(amount for file, amount in hub.sent.items() if file in weights)
    # downloaded whole
    sent -= sum(path.stat().st_size for path in folder.glob("2_Dense/model.safetensors"))
    assert tensors <= sent <= 1.02 * tensors + headers
    expected = truncate(SentenceTransformer(str(folder), device="cpu"), num_layers=2, dim=8).encode(SENTENCES)
    assert np.array_equal(np.asarray(loaded["embedding"], dtype=np.float32), expected.astype(np.float32))
    assert (loaded["layers"], loaded["warnings"]) == (2, [])
    base_model, revision = loaded["base_model"]
    assert (base_model, revision.partition("+")[0]) == (f"org/{name}", "a" * 40)
    assert loaded["called"] == [f"org/{name}"] * 2

    hub.reset()
    assert loader.load(f"org/{name}", num_layers=2, dim=8)["embedding"] == loaded["embedding"]
    assert not [path for path, _ in hub.asked if path.endswith((".safetensors", ".json")) and path != "modules.json"]
    hub.reset()
    assert offline.load(f"org/{name}", num_layers=2, dim=8)["embedding"] == loaded["embedding"]
    assert loader.load(f"org/{name}", num_layers=2, dim=8, local_files_only=True)["embedding"] == loaded["embedding"]
    assert hub.sent == {}

    [piece] = loader.home.glob(f"hub/models--org--{name}/st_matryoshka2d/{'a' * 40}/2-layers-1-*")
    alone = SentenceTransformer(str(piece), device="cpu", truncate_dim=8)
    assert np.array_equal(alone.encode(SENTENCES), expected)
    assert alone[0].model.config.num_hidden_layers == 2
    assert not list(tmp_path.iterdir())


def test_chosen_layers_are_a_piece_of_their_own(hub: Hub, loader: Loader, offline: Loader) -> None:
    folder = hub.root / "org" / "chosen"
    deep(folder)
    hub.reset()
    whole = SentenceTransformer(str(folder), device="cpu")
    for layers in ("ends", [1, 2, 12], "first"):
        hub.reset()
        expected = truncate(whole, num_layers=3, layers=layers).encode(SENTENCES)
        for where in (loader, offline):
            loaded = where.load("org/chosen", num_layers=3, layers=layers)
            assert np.array_equal(np.asarray(loaded["embedding"], dtype=np.float32), expected.astype(np.float32))
        tensors, headers = needed_bytes(folder, lambda block: block >= 3)
        assert tensors <= hub.sent["model.safetensors"] <= 1.02 * tensors + headers


def test_piece_config_differs_only_in_depth(hub: Hub, loader: Loader) -> None:
    folder = hub.root / "org" / "noted"
    family("distilbert")(folder)
    config = json.loads((folder / "config.json").read_text()) | {"transformers_version": "4.30.0", "note": 1}
    (folder / "config.json").write_text(json.dumps(config))
    hub.reset()
    assert loader.load("org/noted", num_layers=2)["layers"] == 2
    [piece] = loader.home.glob("hub/models--org--noted/st_matryoshka2d/*/2-layers-1-4/config.json")
    found = json.loads(piece.read_text())
    assert found["n_layers"] == 2
    changed = {name: value for name, value in found.items() if config.get(name) != value}
    assert changed == {"n_layers": 2}


def test_another_commit_is_another_piece(hub: Hub, loader: Loader, tmp_path: Path) -> None:
    folder = hub.root / "org" / "moving"
    family("bert")(folder)
    hub.reset()
    assert loader.load("org/moving", num_layers=1, cache_folder=str(tmp_path))["layers"] == 1
    assert pieces_in(tmp_path)
    assert not scan_cache_dir(tmp_path).warnings
    assert not pieces_in(loader.home / "hub" / "models--org--moving")
    before = loader.load("org/moving", num_layers=1)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: 2 * tensor for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    hub.reset(commit="b" * 40)
    after = loader.load("org/moving", num_layers=1)
    assert after["embedding"] != before["embedding"]
    assert loader.load("org/moving", num_layers=1, revision="b" * 40)["embedding"] == after["embedding"]
    assert loader.load("org/moving", num_layers=1, revision="a" * 40)["embedding"] == before["embedding"]


def test_offline_error_for_uncached_size(hub: Hub, loader: Loader, offline: Loader, tmp_path: Path) -> None:
    family("bert")(hub.root / "org" / "away")
    hub.reset(commit="c" * 40)
    for num_layers in (3, 1):
        assert loader.load("org/away", num_layers=num_layers)["layers"] == num_layers
    cached = "The cache has a piece of 1 layer and a piece of 3 layers, at commit ccccccc."
    hub.reset(commit="c" * 40)
    for size, asked in (({"num_layers": 2}, "for 2 layers"), ({"num_layers": 4}, "for 4 layers"), ({"dim": 8}, "for all")):
        for refused in (offline.load("org/away", **size), loader.load("org/away", **size, local_files_only=True)):
            assert "LocalEntryNotFoundError" in refused["error"]
            assert f"The weights of org/away {asked}" in refused["words"]
            assert cached in refused["words"]
    refused = offline.load("org/away", num_layers=2, revision="d" * 40)
    assert "The cache has none of them, at commit ddddddd." in refused["words"]
    assert hub.asked == []


def test_partially_cached_checkpoint_is_not_cached(hub: Hub, loader: Loader, offline: Loader) -> None:
    sharded(hub.root / "org" / "parts")
    hub.reset(commit="e" * 40)
    assert loader.load("org/parts", dim=8)["layers"] == 12
    assert offline.load("org/parts", num_layers=2)["layers"] == 2
    snapshot = loader.home / "hub" / "models--org--parts" / "snapshots" / hub.commit
    max(snapshot.glob("model-*.safetensors")).unlink()
    assert "The cache has none of them" in offline.load("org/parts", num_layers=2)["words"]


@pytest.mark.parametrize(
    ("name", "size"),
    [("albert", {"num_layers": 2}), ("bert", {"dim": 8}), ("bert", {"num_layers": 4}), ("elastic", {"num_layers": 2})],
)
def test_downloads_whole_model_silently_if_needed(
    name: str, size: dict[str, int], hub: Hub, loader: Loader, tmp_path: Path
) -> None:
    folder = hub.root / "org" / f"whole-{name}"
    family("bert" if name == "elastic" else name)(folder)
    model = SentenceTransformer(str(folder), device="cpu")
    expected = truncate(model, **size).encode(SENTENCES)
    if name == "elastic":
        elastic(model).save_pretrained(str(folder))
    hub.reset()
    loaded = loader.load(f"org/whole-{name}", **size, cache_folder=str(tmp_path), trust_remote_code=True)
    assert np.array_equal(np.asarray(loaded["embedding"], dtype=np.float32), expected)
    assert loaded["warnings"] == []
    assert pieces_in(tmp_path) == []


@pytest.mark.parametrize("renamed", [True, False])
def test_downloads_whole_file_if_block_names_are_unknown(renamed: bool, hub: Hub, loader: Loader, tmp_path: Path) -> None:
    """A block with a word instead of a number; two models in one file."""
    folder = hub.root / "org" / f"renamed-{renamed}"
    family("bert")(folder)
    tensors = load_file(folder / "model.safetensors")
    if renamed:
        tensors |= {
            name.replace("layer.3.", "layer.three."): tensors.pop(name) for name in list(tensors) if "layer.3." in name
        }
    else:
        tensors |= {f"other.{name}": tensor.clone() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    hub.reset()
    loaded = loader.load(f"org/renamed-{renamed}", num_layers=2, layers="first", cache_folder=str(tmp_path))
    assert loaded["layers"] == 2
    assert len(loaded["warnings"]) == 1
    assert "do not show which belong to which layer" in loaded["warnings"][0]
    assert pieces_in(tmp_path) == []


def test_unfinished_piece_is_never_used(tmp_path: Path) -> None:
    """The next process removes unfinished pieces; finished pieces are written once; a full disk leaves nothing."""
    piece = tmp_path / "2-layers"

    def make(*, full: bool = False) -> None:
        with made_once(piece) as unfinished:
            assert unfinished is not None
            assert not piece.exists()
            folders.append(unfinished)
            if not full:
                raise TimeoutError  # network errors pass through
            with full_disk(), (unfinished / "model.safetensors").open("wb", buffering=0) as file:
                for _ in range(3):
                    file.write(bytes(65536))

    folders: list[Path] = []
    with pytest.raises(TimeoutError):
        make()
    with pytest.raises(OSError, match=r"Make room there.*2-layers"):
        make(full=True)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    folders[0].mkdir()  # left by a killed process
    (folders[0] / "half").touch()
    with made_once(piece) as folder:
        assert folder is not None
        (folder / "whole").touch()
    assert [path.name for path in piece.iterdir()] == ["whole"]
    with made_once(piece) as folder:
        assert folder is None
