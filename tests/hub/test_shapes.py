"""Weights that contradict config.json are refused before download, under all names of transformers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from st_matryoshka2d.hub.weights_fit import check_shapes, shapes_in
from tests.support import families
from tests.support.hub import Hub, configure, pieces_in
from tests.support.loader import Loader


def of_a_family(name: str) -> Callable[[Path], None]:
    return lambda folder: families.build(families.CONFIGS[name]()).save_pretrained(folder)


def with_language_model_head(folder: Path) -> None:
    """Save a model whose names start with `bert.`, with tensors that the base model does not have."""
    hf.BertForMaskedLM(families.CONFIGS["bert"]()).save_pretrained(folder)


# Function that saves a checkpoint, a config entry, and a tensor that contradicts the entry's value
# 8.
CHECKPOINTS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "bert": (of_a_family("bert"), "hidden_size", "embeddings.LayerNorm.bias' is [32], but the config says [8] ("),
    "head": (with_language_model_head, "vocab_size", "embeddings.word_embeddings.weight' is [27, 32], but the config says"),
    "modernbert": (of_a_family("modernbert"), "vocab_size", "embeddings.tok_embeddings.weight' is [27, 32], but the"),
    "nomic-bert": (of_a_family("nomic-bert"), "intermediate_size", "layers.0.mlp.down_proj.weight' is [32, 48], but"),
    "t5-encoder": (of_a_family("t5-encoder"), "d_ff", "DenseReluDense.wi.weight' is [48, 32], but the config says [8, 32]"),
    "qwen3": (of_a_family("qwen3"), "intermediate_size", "layers.0.mlp.down_proj.weight' is [32, 48], but the"),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_accepts_valid_shapes_and_names_others(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save, entry, words = CHECKPOINTS[name]
    save(tmp_path)
    shapes = shapes_in(tmp_path / "model.safetensors")
    config = hf.AutoConfig.from_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        check_shapes(shapes, config, "org/name")
        setattr(config, entry, 8)
        with pytest.raises(ValueError, match=r"The weights of org/name contradict its config\.json") as refused:
            check_shapes(shapes, config, "org/name")
    assert words in str(refused.value)
    assert caplog.messages == []


def test_impossible_and_packed_shapes() -> None:
    config = families.CONFIGS["bert"]()
    # an empty tensor, so that the header is valid
    with pytest.raises(ValueError, match=r"contradict its config\.json"):
        check_shapes({"embeddings.word_embeddings.weight": (0, 10**30)}, config, "org/name")
    config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    check_shapes({"encoder.layer.0.output.dense.weight": (768, 1)}, config, "org/name")


@pytest.mark.parametrize("where", ["config", "tensor"])
def test_downloads_and_caches_nothing_of_bad_shapes(where: str, hub: Hub, loader: Loader) -> None:
    folder = hub.root / "org" / f"contradiction-{where}"
    families.pipeline(families.CONFIGS["bert"](), hub.root / "weights").save_pretrained(str(folder))
    weights = folder / "model.safetensors"
    if where == "config":
        configure(folder, hidden_size=16)
    else:
        save_file(load_file(weights) | {"encoder.layer.3.output.dense.bias": torch.zeros(31)}, weights, {"format": "pt"})
    hub.reset(commit="9" * 40)
    refused = loader.load(folder.relative_to(hub.root).as_posix(), num_layers=2, dim=4)
    assert "ValueError" in refused["error"]
    assert "contradict its config.json" in refused["words"]
    assert pieces_in(loader.home / "hub" / f"models--org--contradiction-{where}") == []
    header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
    assert hub.sent["model.safetensors"] == header
