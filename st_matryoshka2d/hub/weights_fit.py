"""Check that weights fit their config, and that none are missing; refuse others."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import Transformer
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from st_matryoshka2d._hosts.transformers import not_loaded, one_load_at_a_time, quiet_loading
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.safetensors_header import read_header, short
from st_matryoshka2d.model.backbone import find_backbone, text_lists
from st_matryoshka2d.model.copies import trial
from st_matryoshka2d.model.network import made_by
from st_matryoshka2d.sizes import layered

# Layers that any model may have, however few its tensors: ALBERT runs one block 12 or 24 times,
# with 25 tensors in all.
_REPEATS = 100
_LARGEST_BUFFERS = 2**30
_NAMED = 5
# What transformers and torch raise where a config describes no model.
_NO_MODEL = (RuntimeError, TypeError, ValueError, ArithmeticError)


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the shape of each tensor in a file of weights; refuse a broken file, and a pickle with more than tensors."""
    if path.suffix == ".safetensors":
        size, what = path.stat().st_size, str(path)
        header = read_header(lambda start, stop: np.fromfile(path, "u1", stop - start, offset=start).tobytes(), size, what)
        return {tensor.name: tensor.shape for tensor in header.tensors}
    try:
        state = torch.load(path, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(path))
        return {name: tuple(tensor.shape) for name, tensor in state.items()}
    except Exception as error:
        raise UsageError(  # hides torch's message, which suggests running the code
            f"{path} is broken, or holds more than tensors and could run code when opened ({type(error).__name__}). "
            "Ask its author for a safetensors file; do not open this one in another way."
        ) from None


def depth_of(config: PreTrainedConfig, what: str, num_tensors: int | None = None) -> int:
    """Return the number of layers; refuse one that is unusable, or impossible with so few tensors."""
    depth = getattr(layered(config), "num_hidden_layers", None)
    if depth is None:
        raise UsageError(f"{what}: {type(config).__name__} has no `num_hidden_layers`, so it cannot be cut in depth.")
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise UsageError(
            f"config.json of {what} must have a whole number of 1 or more as `num_hidden_layers`, found {short(depth)}."
        )
    # a model of it would take time and memory
    if num_tensors is not None and depth > max(num_tensors, _REPEATS):
        raise UsageError(
            f"config.json of {what} says that the model has {depth} layers, but its weights are {num_tensors} tensors. "
            "Write the number of layers that the weights have into config.json, or download the checkpoint again."
        )
    return depth


def check_shapes(shapes: Mapping[str, tuple[int, ...]], config: PreTrainedConfig, what: str) -> None:
    """Refuse wrong shapes, and blocks with missing tensors; transformers maps the names of the weights."""
    if getattr(config, "quantization_config", None) is not None:
        return  # only the quantization library knows the shapes of packed weights
    contradiction = f"The weights of {what} contradict its config.json"
    end = "Ask the author of the checkpoint to save it again."
    try:
        model = blank_model(config)
        size = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
        if size > _LARGEST_BUFFERS:  # such as a huge table of positions
            raise UsageError(f"it needs tables of {size} bytes that are in no file; {_LARGEST_BUFFERS} are allowed.")
        if {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}.items() <= shapes.items():
            return  # all names and shapes fit
        loading = _loading_info(model, shapes)
    except _NO_MODEL as error:
        raise UsageError(f"{contradiction}: {short(str(error))}") from error
    if wrong := sorted(loading["mismatched_keys"]):
        name, stored, expected = wrong[0]
        more = f" ({len(wrong) - 1} more differ)" if len(wrong) > 1 else ""
        raise UsageError(
            f"{contradiction}: {short(name)} is {list(stored)}, but the config says {list(expected)}{more}. {end}"
        )
    absent: list[str] = []
    for path in block_lists(model):  # a whole list may be missing: the decoder of an encoder
        names = {name for name in model.state_dict() if name.startswith(f"{path}.")}
        absent += names & loading["missing_keys"] if names - loading["missing_keys"] else []
    if absent:
        raise UsageError(f"The weights of {what} lack {_some(sorted(absent))}. {end}")


def blank_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model on the meta device, which takes no memory whatever the config says."""
    with one_load_at_a_time, torch.device("meta"):
        model: PreTrainedModel = AutoModel.from_config(config)
    return model


def described(config: PreTrainedConfig, what: str) -> PreTrainedModel:
    """Return the `blank_model` that a config describes; refuse one that describes none."""
    try:
        return blank_model(config)
    except _NO_MODEL as error:
        raise UsageError(f"config.json of {what} describes no model: {short(str(error))}") from error


def block_lists(model: PreTrainedModel) -> list[str]:
    """Dotted paths of the lists of modules that are as long as the model is deep."""
    depth = layered(model.config).num_hidden_layers
    return [path for path, blocks in text_lists(model).items() if len(blocks) == depth]


def _loading_info(model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Let transformers load empty tensors of these shapes, and return what is missing or has another shape."""
    with one_load_at_a_time, quiet_loading():  # the caller raises an error instead
        loaded: Any = type(model).from_pretrained(
            None,
            config=model.config,
            state_dict={name: torch.empty(shape, device="meta") for name, shape in shapes.items()},
            device_map="meta",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    return dict(loaded[1])


def _some(names: Collection[str]) -> str:
    """List the first names, and count the others."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(short, islice(names, _NAMED))) + more


def check_complete(pipeline: nn.Module, where: str) -> None:
    """Refuse a model whose output depends on missing weights, which transformers filled with random values."""
    for module in pipeline.modules():
        network = module.model if isinstance(module, Transformer) else None
        # a quantizer replaces the parameters, and loads them itself
        if not isinstance(network, PreTrainedModel) or getattr(network, "hf_quantizer", None) is not None:
            continue
        if absent := _absent(network):
            raise UsageError(
                f"{where} lacks weights of {type(network).__name__}, or has them in other shapes: {_some(absent)}. They are "
                "not replaced by random values: download the checkpoint again, or ask its author to save it again."
            )


def _absent(network: PreTrainedModel) -> list[str]:
    """List missing weights in the blocks, or that the output depends on, unlike those of an unused pooling head."""
    made_up = not_loaded(network)  # transformers initialised them
    if not made_up:
        return []
    blocks = find_backbone(network).blocks
    copied, inputs = trial(network)
    weights = dict(copied.named_parameters())
    wanted = [weights[name].requires_grad_() for name in made_up]  # those of an adapter are frozen
    with torch.enable_grad():
        *_, made = made_by(copied, inputs)
        used = torch.autograd.grad(made.sum(), wanted, allow_unused=True) if made.requires_grad else [None] * len(wanted)
    reached = {name for name, gradient in zip(made_up, used, strict=True) if gradient is not None}
    # A block may have experts that these few tokens do not reach.
    return [name for name in made_up if name in reached or (blocks and name.startswith(f"{blocks}."))]
