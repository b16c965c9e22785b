"""Checkpoints that are a PEFT adapter: loaded with their base model, whole or cut, and nothing is unpickled."""

from __future__ import annotations

import copy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import TruncatedTransformer, align, load, truncate
from tests.support.adapters import by_hand, lora, saved_with_adapter
from tests.support.families import TEXTS
from tests.support.hub import Hub, change, configure
from tests.support.loader import Loader
from tests.support.pipelines import TEXTS as MANY

SENTENCES = ["the cat sat on the mat", "a dog"]
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture(scope="module")
def pristine(_tiny_bert: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> tuple[SentenceTransformer, Path]:
    return saved_with_adapter(copy.deepcopy(_tiny_bert), tmp_path_factory.mktemp("saved"))


@pytest.fixture
def folder(pristine: tuple[SentenceTransformer, Path], tmp_path: Path) -> Path:
    """Return a copy of the adapter's folder, whose base model is beside it."""
    shutil.copytree(pristine[1].parent, tmp_path / "saved")
    configure(tmp_path / "saved" / "adapter", CONFIG, base_model_name_or_path=str(tmp_path / "saved" / "base"))
    return tmp_path / "saved" / "adapter"


def pickle_of(file: Path) -> None:
    torch.save(
        load_file(file), file.with_name("pytorch_model.bin" if file.name.startswith("model") else "adapter_model.bin")
    )
    file.unlink()


def test_a_folder_is_loaded_whole_or_cut(pristine: tuple[SentenceTransformer, Path]) -> None:
    model, folder = pristine
    plain = by_hand(SentenceTransformer(str(folder.parent / "base"), device="cpu"), model)
    whole, small = load(folder, device="cpu"), load(folder, "2L-8d", device="cpu")
    assert np.abs(whole.encode(TEXTS) - plain.encode(TEXTS)).max() < 1e-5
    assert whole.active_adapters() == ["default"]
    assert not [module for module in small.modules() if type(module).__module__.startswith("peft")]
    assert small.config.num_hidden_layers == 2


def to_prompt_tuning(adapter: Path) -> None:
    base = SentenceTransformer(str(adapter.parent / "base"), device="cpu")[0].model
    config = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="FEATURE_EXTRACTION")
    peft.get_peft_model(base, config).save_pretrained(str(adapter))


BROKEN: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "no weights": (lambda it: (it / WEIGHTS).unlink(), ValueError, "adapter without adapter_model.safetensors"),
    "no tensor": (lambda it: change(it / WEIGHTS, lambda held: held.pop(min(held))), ValueError, "BertModel.*lora_"),
    "garbage": (lambda it: (it / WEIGHTS).write_bytes(b"x"), ValueError, "adapter_model.safetensors has 1 bytes"),
    "no JSON": (lambda it: (it / CONFIG).write_text("{"), ValueError, "adapter_config.json"),
    "unknown kind": (lambda it: configure(it, CONFIG, peft_type="NEW"), KeyError, "NEW"),
    "prompt tuning": (to_prompt_tuning, ValueError, "does not support prompt learning"),
    "magnitudes": (lambda it: configure(it, CONFIG, use_dora=True), ValueError, "DoRA"),
    "no base": (lambda it: configure(it, CONFIG, base_model_name_or_path=None), ValueError, "found None"),
    "lost base": (lambda it: shutil.rmtree(it.parent / "base"), FileNotFoundError, "There is no folder .*base"),
    "pickled base": (lambda it: pickle_of(it.parent / "base" / "model.safetensors"), ValueError, "base has no safetensors"),
    "other base": (lambda it: configure(it.parent / "base", hidden_size=64), ValueError, "adapter do not fit its modules"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_one_is_refused(how: str, folder: Path) -> None:
    damage, error, words = BROKEN[how]
    damage(folder)
    with pytest.raises(error, match=words):
        load(folder, "2L-8d")


def test_nothing_is_unpickled(folder: Path, tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> Any:
            return (tmp_path / "ran").touch, ()

    (folder / WEIGHTS).rename(folder / "other.safetensors")
    torch.save({"weight": Code()}, folder / "adapter_model.bin")
    for allowed in (False, True):
        with pytest.raises(ValueError, match="A pickled adapter is not read, not even with allow_bin=True"):
            load(folder, "2L-8d", allow_bin=allowed)
    assert not (tmp_path / "ran").exists()


def test_without_peft(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match="peft"):
        load(folder, "2L-8d")


def test_a_pickled_base_can_be_allowed(folder: Path, pristine: tuple[SentenceTransformer, Path]) -> None:
    pickle_of(folder.parent / "base" / "model.safetensors")
    small = load(folder, "2L-8d", device="cpu", allow_bin=True)
    assert np.array_equal(small.encode(TEXTS), truncate(pristine[0], "2L-8d").encode(TEXTS))


def test_readouts_that_the_base_does_not_know_are_refused(folder: Path, tmp_path: Path) -> None:
    aligned = align(SentenceTransformer(str(folder.parent / "base"), device="cpu"), MANY)
    aligned.add_adapter(lora())
    aligned.save_pretrained(str(tmp_path / "adapter"))
    with pytest.raises(ValueError, match="adapter of an aligned model, and names a base model that is not aligned"):
        load(tmp_path / "adapter", "2L-8d")
    truncate(aligned, num_layers=4).save_pretrained(str(tmp_path / "merged"))
    loaded = load(tmp_path / "merged", "2L-8d", device="cpu")
    assert np.array_equal(loaded.encode(TEXTS), truncate(aligned, "2L-8d").encode(TEXTS))


def test_depth_as_an_argument(folder: Path, tmp_path: Path) -> None:
    model = load(folder, device="cpu")
    model[0] = TruncatedTransformer.from_transformer(model[0])
    model.save_pretrained(str(tmp_path / "elastic"))
    loaded = load(tmp_path / "elastic", device="cpu", trust_remote_code=True)
    assert np.array_equal(loaded.encode(TEXTS, num_layers=2), model.encode(TEXTS, num_layers=2))
    small = load(tmp_path / "elastic", "2L-8d", device="cpu", trust_remote_code=True)
    assert np.array_equal(small.encode(TEXTS), truncate(model, "2L-8d").encode(TEXTS))


def test_on_the_hub(hub: Hub, loader: Loader, offline: Loader, pristine: tuple[SentenceTransformer, Path]) -> None:
    model, folder = pristine
    for part in ("base", "adapter"):
        shutil.copytree(folder.parent / part, hub.root / "org" / part)
    configure(hub.root / "org" / "adapter", CONFIG, base_model_name_or_path="org/base")
    hub.reset()
    wanted = truncate(model, "2L-8d").encode(SENTENCES).tolist()
    missing = offline.load("org/adapter", size="2L-8d")
    assert "RevisionResolutionError" in missing["error"]
    for process in (loader, offline, loader):
        found = process.load("org/adapter", size="2L-8d")
        assert found.get("embedding") == wanted, found
    assert loader.load("org/adapter", revision="a" * 40)["embedding"] == model.encode(SENTENCES).tolist()
    pickle_of(hub.root / "org" / "base" / "model.safetensors")
    hub.reset(commit="b" * 40)
    refused = loader.load("org/adapter", size="2L-8d")
    assert "org/base has no safetensors file in its root, found ['pytorch_model.bin']" in refused["words"]
    assert "pytorch_model.bin" not in hub.sent
