"""Incomplete, contradictory and corrupt checkpoints are refused at once, by name; weights are never initialised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from torch import Tensor

from st_matryoshka2d import TruncatedTransformer, load, truncate
from tests.support import families
from tests.support.families import TEXTS
from tests.support.quick import quick

QUERY = "encoder.layer.0.attention.self.query.weight"


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A BERT of 4 layers x 32 with a Dense module."""
    families.pipeline(families.CONFIGS["bert"](), tmp_path / "weights").save_pretrained(str(tmp_path / "model"))
    return tmp_path / "model"


def change(path: Path, how: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(path)
    how(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path, {"format": "pt"})


def rename(path: Path, name: str) -> None:
    change(path, lambda tensors: tensors.update(other=tensors.pop(name)))


def configure(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def refused(folder: Path, **kwargs: Any) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        load(folder, **{"num_layers": 2, "device": "cpu", **kwargs})
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        (QUERY, {}),
        ("encoder.layer.1.output.LayerNorm.bias", {"model_kwargs": {"dtype": torch.bfloat16}}),
        ("embeddings.word_embeddings.weight", {}),
        ("embeddings.LayerNorm.weight", {"num_layers": None, "dim": 8}),
    ],
)
def test_a_missing_weight_is_refused_by_name(name: str, kwargs: dict[str, Any], folder: Path) -> None:
    rename(folder / "model.safetensors", name)
    words = refused(folder, **kwargs)
    assert name in words
    assert f"model.safetensors of {folder}" in words


@pytest.mark.parametrize("family", quick(["modernbert", "qwen3", "t5-encoder", "albert", "distilbert"], "qwen3"))
def test_refuses_missing_weights_of_every_family(family: str, tmp_path: Path) -> None:
    """The last weight is often a final norm, which only pre-norm families have."""
    families.pipeline(families.CONFIGS[family](), tmp_path / "weights").save_pretrained(str(tmp_path))
    whole = load_file(tmp_path / "model.safetensors")
    names = [name for name in whole if "pooler" not in name and not any(f".{upper}." in name for upper in (2, 3))]
    for name in (names[0], names[-1]):
        save_file(
            {key: tensor for key, tensor in whole.items() if key != name}, tmp_path / "model.safetensors", {"format": "pt"}
        )
        assert name.rpartition(".")[2] in refused(tmp_path)


def test_missing_from_a_shard_of_several(folder: Path) -> None:
    hf.AutoModel.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    rename(folder / index["weight_map"].pop(QUERY), QUERY)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert QUERY in refused(folder)
    (folder / index["weight_map"]["embeddings.LayerNorm.bias"]).unlink()
    assert "which is missing" in refused(folder)


def test_missing_from_a_bin(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert load(folder, num_layers=2, device="cpu", allow_bin=True).config.num_hidden_layers == 2
    for name in (QUERY, "embeddings.LayerNorm.bias"):
        torch.save({key: tensor for key, tensor in tensors.items() if key != name}, folder / "pytorch_model.bin")
        words = refused(folder, allow_bin=True)
        assert name in words
        assert "pytorch_model.bin" in words


def test_missing_weight_of_model_cut_after_loading(folder: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(folder), device="cpu")
    routes = {name: list(SentenceTransformer(str(folder)).children())[:2] for name in ("query", "document")}
    SentenceTransformer(modules=[Router.for_query_document(*routes.values())]).save_pretrained(str(tmp_path / "router"))
    model[0] = TruncatedTransformer.from_transformer(model[0])
    model.save_pretrained(str(tmp_path / "elastic"))
    for weights in (
        tmp_path / "elastic" / "model.safetensors",
        tmp_path / "router" / "query_0_Transformer" / "model.safetensors",
    ):
        for name in (QUERY, "embeddings.LayerNorm.bias"):
            saved = weights.read_bytes()
            rename(weights, name)
            assert name in refused(tmp_path / weights.relative_to(tmp_path).parts[0], trust_remote_code=True)
            weights.write_bytes(saved)
        configure(weights.parent, num_hidden_layers=10**9)
        assert "1000000000 layers" in refused(tmp_path / weights.relative_to(tmp_path).parts[0], trust_remote_code=True)


@pytest.mark.parametrize(("name", "shape"), [("linear.weight", (3,)), ("linear.bias", None)])
def test_missing_or_misshapen_weight_of_later_module(name: str, shape: tuple[int, ...] | None, folder: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        del tensors[name]
        if shape:
            tensors[name] = torch.zeros(shape)

    change(folder / "2_Dense" / "model.safetensors", spoil)
    words = refused(folder)
    assert name in words
    assert f"The weights of {folder} do not fit its modules" in words


def test_a_misshapen_weight_is_refused_by_name(folder: Path) -> None:
    change(folder / "model.safetensors", lambda tensors: tensors.update({QUERY: torch.zeros(32, 31)}))
    for kwargs in ({}, {"model_kwargs": {"ignore_mismatched_sizes": True}}):
        assert f"'{QUERY}' is [32, 31], but the config says [32, 32]" in refused(folder, **kwargs)
    rename(folder / "model.safetensors", QUERY)
    assert f"{QUERY}" in refused(folder, model_kwargs={"ignore_mismatched_sizes": True})


def test_unneeded_weights_may_be_missing_or_extra(folder: Path) -> None:
    expected = truncate(SentenceTransformer(str(folder), device="cpu"), num_layers=2).encode(TEXTS)

    def spoil(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            if name.startswith(("pooler.", "encoder.layer.3.output")):
                del tensors[name]
        tensors["encoder.layer.2.output.dense.weight"] = torch.zeros(2, 2)
        tensors["cls.predictions.bias"] = torch.zeros(27)

    change(folder / "model.safetensors", spoil)
    assert np.array_equal(load(folder, num_layers=2, device="cpu").encode(TEXTS), expected)
    assert "encoder.layer.2.output.dense.weight" in refused(folder, num_layers=3)
    assert "encoder.layer.2.output.dense.weight" in refused(folder, num_layers=None, dim=8)


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_accepts_renamed_weights_of_transformers(prefix: str, folder: Path) -> None:
    expected = truncate(SentenceTransformer(str(folder), device="cpu"), num_layers=2).encode(TEXTS)

    def older(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[prefix + old] = tensors.pop(name)

    change(folder / "model.safetensors", older)
    assert np.array_equal(load(folder, num_layers=2, device="cpu").encode(TEXTS), expected)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"num_hidden_layers": 10**9}, "says that the model has 1000000000 layers, but its weights are"),
        ({"num_hidden_layers": -1}, "a whole number of 1 or more as `num_hidden_layers`, found -1"),
        ({"hidden_size": 10**15}, "contradict its config.json"),
        ({"num_attention_heads": 0}, "contradict its config.json"),
        ({"num_attention_heads": "4"}, "'num_attention_heads' expected int, got str"),
        ({"vocab_size": 10**12}, "the config says [1000000000000, 32]"),
        ({"max_position_embeddings": 10**10}, "that are in no file"),
        ({"intermediate_size": 10**30}, "contradict its config.json"),
    ],
)
def test_refuses_config_that_contradicts_weights(entries: dict[str, Any], words: str, folder: Path) -> None:
    configure(folder, **entries)
    said = refused(folder)
    assert words in said
    assert str(folder) in said


def test_a_model_that_repeats_one_block_may_be_deeper_than_it_has_tensors(tmp_path: Path) -> None:
    config = families.CONFIGS["albert"]()
    config.num_hidden_layers = 60
    families.pipeline(config, tmp_path / "weights").save_pretrained(str(tmp_path))
    assert len(load_file(tmp_path / "model.safetensors")) < 60
    assert load(tmp_path, num_layers=2, device="cpu").config.num_hidden_layers == 2
    configure(tmp_path, num_hidden_layers=10**9)
    assert "1000000000 layers" in refused(tmp_path)


@pytest.mark.parametrize(
    ("file", "spoil", "words"),
    [
        ("model.safetensors", lambda content: content[:-5], "ends at byte"),
        ("model.safetensors", lambda content: content[:4], "has 4 bytes"),
        ("model.safetensors", lambda content: b"\xff" * 64, "says that its header is"),
        ("1_Pooling/config.json", lambda content: content[:-5], "is not usable JSON"),
        ("tokenizer.json", lambda content: content[:-5], "is not usable JSON"),
    ],
)
def test_a_broken_file_is_named(file: str, spoil: Callable[[bytes], bytes], words: str, folder: Path) -> None:
    (folder / file).write_bytes(spoil((folder / file).read_bytes()))
    said = refused(folder)
    assert words in said
    assert str(folder / file) in said


@pytest.mark.parametrize(("where", "content"), [("", "pickle"), ("2_Dense/", "cut off"), ("", "nothing")])
def test_refuses_bin_with_code_without_bad_advice(where: str, content: str, folder: Path) -> None:
    path = folder / f"{where}pytorch_model.bin"
    torch.save(load_file(folder / f"{where}model.safetensors") | ({"a": Path()} if content == "pickle" else {}), path)
    if content != "pickle":
        path.write_bytes(path.read_bytes()[: -100 if content == "cut off" else 0])
    (folder / f"{where}model.safetensors").unlink()
    said = refused(folder, allow_bin=True)
    assert str(path) in said
    assert "Ask its author for a safetensors file" in said
    assert "weights_only" not in said


CARD = """---
language: [en]
license: apache-2.0
base_model: org/teacher
datasets: [org/data]
---
# The whole model
"""


def test_cut_keeps_origin_of_card(folder: Path, tmp_path: Path) -> None:
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    load(folder, num_layers=2, dim=8, device="cpu").save_pretrained(str(tmp_path / "cut"))
    card = (tmp_path / "cut" / "README.md").read_text(encoding="utf-8")
    for words in ("license: apache-2.0", "base_model: org/teacher", "- en", "- org/data"):
        assert words in card
    assert "The whole model" not in card
    data = truncate(SentenceTransformer(str(folder), device="cpu"), num_layers=2).model_card_data
    assert (data.license, data.base_model, data.datasets) == ("apache-2.0", "org/teacher", ["org/data"])
    load(folder, num_layers=4, dim=24, device="cpu").save_pretrained(str(tmp_path / "whole"))
    assert "# The whole model" in (tmp_path / "whole" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("card", ["no metadata", "---\nlicense: [\n---\n", "---\n- a list\n---\n", "---\nlicense: 3\n---\n"])
def test_ignores_unreadable_card(card: str, folder: Path) -> None:
    (folder / "README.md").write_text(card, encoding="utf-8")
    assert load(folder, num_layers=2, dim=8, device="cpu").model_card_data.license is None
