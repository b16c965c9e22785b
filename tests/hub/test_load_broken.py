"""Incomplete, contradictory and corrupt checkpoints are refused at once, by name; weights are never initialised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from torch import Tensor

from st_matryoshka2d import TruncatedTransformer, load, truncate
from tests.support import families
from tests.support.families import TEXTS
from tests.support.hub import change, configure, in_shards
from tests.support.quick import quick

WEIGHTS, INDEX, BIN = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
QUERY, BIAS = "encoder.layer.0.attention.self.query.weight", "embeddings.LayerNorm.bias"
Damage = Callable[[Path], Any]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    return families.pipeline(families.CONFIGS["bert"](), tmp_path_factory.mktemp("weights"))


@pytest.fixture
def folder(pristine: SentenceTransformer, tmp_path: Path) -> Path:
    """A BERT of 4 layers x 32 with a Dense module."""
    pristine.save_pretrained(str(tmp_path / "model"))
    return tmp_path / "model"


def without(name: str, file: str = WEIGHTS) -> Damage:
    return lambda folder: change(folder / file, lambda tensors: tensors.update(other=tensors.pop(name)))


def with_tensor(name: str, shape: tuple[int, ...], file: str = WEIGHTS) -> Damage:
    return lambda folder: change(folder / file, lambda tensors: tensors.update({name: torch.zeros(shape)}))


def configured(**entries: Any) -> Damage:
    return lambda folder: configure(folder, **entries)


def spoil(file: str, how: Callable[[bytes], bytes]) -> Damage:
    return lambda folder: (folder / file).write_bytes(how((folder / file).read_bytes()))


def shard_without_query(folder: Path) -> None:
    in_shards(folder)
    index = json.loads((folder / INDEX).read_text())
    without(QUERY, index["weight_map"].pop(QUERY))(folder)
    (folder / INDEX).write_text(json.dumps(index))


def without_a_shard(folder: Path) -> None:
    in_shards(folder)
    (folder / json.loads((folder / INDEX).read_text())["weight_map"][BIAS]).unlink()


def as_bin(folder: str = "", lacks: str = "", keep: slice = slice(None), **more: Any) -> Damage:
    def write(root: Path) -> None:
        tensors = load_file(root / folder / WEIGHTS)
        (root / folder / WEIGHTS).unlink()
        path = root / folder / BIN
        torch.save({name: tensor for name, tensor in tensors.items() if name != lacks} | more, path)
        path.write_bytes(path.read_bytes()[keep])

    return write


MISFIT = f"'{QUERY}' is [32, 31], but the config says [32, 32]"
HALF: dict[str, Any] = {"model_kwargs": {"dtype": torch.bfloat16}}
MISMATCHED: dict[str, Any] = {"model_kwargs": {"ignore_mismatched_sizes": True}}
NORM = "embeddings.LayerNorm.weight"

# How a folder is spoiled, what it is loaded with besides two layers, and what the error says.
BROKEN: list[tuple[Damage, dict[str, Any], str]] = [
    (without(QUERY), {}, QUERY),
    (without(QUERY), MISMATCHED, QUERY),
    (without("encoder.layer.3.output.LayerNorm.bias"), HALF, "3.output.LayerNorm.bias"),
    (without("embeddings.word_embeddings.weight"), {}, "embeddings.word_embeddings.weight"),
    (without(NORM), {"num_layers": None, "dim": 8}, NORM),
    (with_tensor(QUERY, (32, 31)), {}, MISFIT),
    (with_tensor(QUERY, (32, 31)), MISMATCHED, MISFIT),
    (with_tensor("linear.weight", (3,), "2_Dense/model.safetensors"), {}, "linear.weight"),
    (without("linear.bias", "2_Dense/model.safetensors"), {}, "linear.bias"),
    (shard_without_query, {}, QUERY),
    (without_a_shard, {}, "which is missing"),
    (as_bin(lacks=QUERY), {"allow_bin": True}, QUERY),
    (as_bin(lacks=BIAS), {"allow_bin": True}, BIAS),
    (as_bin(a=Path()), {"allow_bin": True}, "safetensors"),
    (as_bin(keep=slice(0)), {"allow_bin": True}, BIN),
    (as_bin("2_Dense", keep=slice(-100)), {"allow_bin": True}, f"2_Dense/{BIN}"),
    (configured(num_hidden_layers=10**9), {}, "1000000000 layers"),
    (configured(num_hidden_layers=-1), {}, "`num_hidden_layers`, found -1"),
    (configured(hidden_size=10**15), {}, "config.json"),
    (configured(num_attention_heads=0), {}, "config.json"),
    (configured(num_attention_heads="4"), {}, "'num_attention_heads' expected int, got str"),
    (configured(vocab_size=10**12), {}, "[1000000000000, 32]"),
    (configured(max_position_embeddings=10**10), {}, "in no file"),
    (configured(intermediate_size=10**30), {}, "config.json"),
    (spoil(WEIGHTS, lambda content: content[:-5]), {}, WEIGHTS),
    (spoil(WEIGHTS, lambda content: content[:4]), {}, "has 4 bytes"),
    (spoil(WEIGHTS, lambda content: b"\xff" * 64), {}, WEIGHTS),
    (spoil("1_Pooling/config.json", lambda content: content[:-5]), {}, "1_Pooling/config.json"),
    (spoil("tokenizer.json", lambda content: content[:-5]), {}, "tokenizer.json"),
]


def refused(folder: Path, **kwargs: Any) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        load(folder, **{"num_layers": 2, "device": "cpu", **kwargs})
    assert str(folder) in str(error.value)
    assert "weights_only" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("place", range(len(BROKEN)))
def test_a_broken_folder_is_refused(place: int, folder: Path) -> None:
    damage, kwargs, told = BROKEN[place]
    damage(folder)
    assert told in refused(folder, **kwargs)


@pytest.mark.parametrize("family", quick(["modernbert", "qwen3", "t5-encoder", "albert", "distilbert"], "qwen3"))
def test_refuses_missing_weights_of_every_family(family: str, tmp_path: Path) -> None:
    """The last weight is often a final norm, which only pre-norm families have."""
    families.pipeline(families.CONFIGS[family](), tmp_path / "weights").save_pretrained(str(tmp_path))
    whole = load_file(tmp_path / WEIGHTS)
    names = [name for name in whole if "pooler" not in name and not any(f".{inner}." in name for inner in (1, 2))]
    for name in (names[0], names[-1]):
        save_file({key: tensor for key, tensor in whole.items() if key != name}, tmp_path / WEIGHTS, {"format": "pt"})
        assert name.rpartition(".")[2] in refused(tmp_path)


def test_models_that_are_cut_after_loading(folder: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(folder), device="cpu")
    routes = [list(SentenceTransformer(str(folder)).children())[:2] for _ in range(2)]
    SentenceTransformer(modules=[Router.for_query_document(*routes)]).save_pretrained(str(tmp_path / "router"))
    model[0] = TruncatedTransformer.from_transformer(model[0])
    model.save_pretrained(str(tmp_path / "elastic"))
    for name, place in (("elastic", ""), ("router", "query_0_Transformer")):
        weights = tmp_path / name / place / WEIGHTS
        for tensor in (QUERY, BIAS):
            saved = weights.read_bytes()
            without(tensor)(weights.parent)
            assert tensor in refused(tmp_path / name, trust_remote_code=True)
            weights.write_bytes(saved)
        configure(weights.parent, num_hidden_layers=10**9)
        assert "1000000000 layers" in refused(tmp_path / name, trust_remote_code=True)


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_what_a_cut_does_not_need_may_be_missing_extra_or_renamed(prefix: str, folder: Path) -> None:
    """Under the names of old checkpoints too."""
    expected = truncate(SentenceTransformer(str(folder), device="cpu"), num_layers=2, layers="first").encode(TEXTS)

    def older(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensor = tensors.pop(name)
            if not name.startswith(("pooler.", "encoder.layer.3.output")):
                old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
                tensors[prefix + old] = tensor
        tensors[f"{prefix}encoder.layer.2.output.dense.weight"] = torch.zeros(2, 2)
        tensors["cls.predictions.bias"] = torch.zeros(27)

    change(folder / WEIGHTS, older)
    assert np.array_equal(load(folder, num_layers=2, layers="first", device="cpu").encode(TEXTS), expected)
    assert "encoder.layer.2.output.dense.weight" in refused(folder, num_layers=3, layers="first")
    assert "encoder.layer.2.output.dense.weight" in refused(folder, num_layers=None, dim=8)


def test_a_model_that_repeats_one_block_may_be_deeper_than_it_has_tensors(tmp_path: Path) -> None:
    config = families.CONFIGS["albert"]()
    config.num_hidden_layers = 60
    families.pipeline(config, tmp_path / "weights").save_pretrained(str(tmp_path))
    assert len(load_file(tmp_path / WEIGHTS)) < 60
    assert load(tmp_path, num_layers=2, device="cpu").config.num_hidden_layers == 2
    configure(tmp_path, num_hidden_layers=10**9)
    assert "1000000000 layers" in refused(tmp_path)


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
    load(folder, num_layers=4, dim=24, device="cpu").save_pretrained(str(tmp_path / "whole"))
    assert "# The whole model" in (tmp_path / "whole" / "README.md").read_text(encoding="utf-8")
    for broken in ("no metadata", "---\nlicense: [\n---\n", "---\n- a list\n---\n", "---\nlicense: 3\n---\n"):
        (folder / "README.md").write_text(broken, encoding="utf-8")
        assert load(folder, num_layers=2, dim=8, device="cpu").model_card_data.license is None
