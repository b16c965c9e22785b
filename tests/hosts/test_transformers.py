"""What transformers keeps under private names, and does while it loads: each test fails if a release does it otherwise."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, Gemma4TextConfig

from st_matryoshka2d._hosts.transformers import as_read, drop_captures, forget_adapters, not_loaded, quiet_loading
from st_matryoshka2d.model.adapters import adapter_layers

LACKS = "encoder.layer.1.output.dense.bias"


def small() -> BertModel:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    return BertModel(BertConfig(vocab_size=40, max_position_embeddings=16, **sizes)).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model that lacks one weight."""
    small().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights.pop(LACKS)
    save_file(weights, file, {"format": "pt"})
    return tmp_path


def test_a_weight_that_no_file_has_is_known(folder: Path) -> None:
    assert not_loaded(BertModel.from_pretrained(folder)) == [LACKS]


def test_the_report_of_loading_is_silenced_alone(folder: Path) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addHandler(handler)
    try:
        BertModel.from_pretrained(folder)
        assert len(records) == 1
        with quiet_loading():
            BertModel.from_pretrained(folder)
            assert len(records) == 1
            logger.warning("another")
        assert len(records) == 2
    finally:
        logger.removeHandler(handler)


def test_a_config_is_read_as_from_its_file() -> None:
    written = Gemma4TextConfig(num_hidden_layers=2, layer_types=["full_attention"] * 2, attn_implementation="eager")
    written.layer_types = ["full_attention", "sliding_attention"]
    read = as_read(written)
    assert read.layer_types == ["full_attention"] * 2, "the last is forced"
    assert read.per_layer_config[1].head_dim == written.per_layer_config[1].head_dim
    assert read._attn_implementation == "eager"


def test_a_copy_without_captures_returns_states_again(folder: Path) -> None:
    model, inputs = small(), {"input_ids": torch.arange(4)[None]}
    wanted = model(**inputs, output_hidden_states=True).hidden_states
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(model)  # transformers has installed local functions as hooks
    copied = copy.deepcopy(model)
    for module in copied.modules():
        drop_captures(module)
    again = pickle.loads(pickle.dumps(copied))(**inputs, output_hidden_states=True).hidden_states
    assert len(again) == len(wanted) == 3
    for found, state in zip(again, wanted, strict=True):
        assert torch.equal(found, state)


def test_a_model_that_forgets_its_adapters_is_saved_whole(tmp_path: Path) -> None:
    model = small()
    plain = {name for name, _ in model.named_parameters()}
    model.add_adapter(peft.LoraConfig(target_modules=["query"]))
    for path, layer in adapter_layers(model).items():
        model.set_submodule(path, layer.get_base_layer())
    with pytest.raises(UnboundLocalError):  # it looks for an adapter to save
        model.save_pretrained(tmp_path / "adapter")
    forget_adapters(model)
    model.save_pretrained(tmp_path / "whole")
    assert set(load_file(tmp_path / "whole/model.safetensors")) == plain
