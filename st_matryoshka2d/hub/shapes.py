"""Whether tensors fit config.json, which their headers tell before they are fetched and a model is built."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from st_matryoshka2d.hub.safety import short

__all__ = ["blank_model", "block_lists", "check_depth", "check_shapes", "depth_of"]

# How often a model may run the same block, as ALBERT does, whose 25 tensors serve 12 or 24 layers.
_REPEATS = 100
_LARGEST_BUFFERS = 2**30
_NAMED = 5


def blank_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A model without numbers, which takes no memory however large the config says it is."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModel.from_config(config)
    return model


def block_lists(model: PreTrainedModel) -> list[str]:
    """Dotted paths of the lists in a model that are as long as it is deep."""
    depth = model.config.num_hidden_layers
    return [path for path, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == depth]


def depth_of(config: PreTrainedConfig, what: str) -> int:
    """How many layers a model has; refuse a config that does not say so."""
    depth = getattr(config, "num_hidden_layers", None)
    if depth is None:
        raise ValueError(f"{what}: {type(config).__name__} has no `num_hidden_layers`, so it has no depth to choose.")
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise ValueError(
            f"config.json of {what} must have a whole number of 1 or more as `num_hidden_layers`, found {short(depth)}."
        )
    return depth


def check_depth(config: PreTrainedConfig, num_tensors: int, what: str) -> None:
    """Refuse a depth that no checkpoint of so many tensors can have, before time and memory are spent on a model of it."""
    depth = depth_of(config, what)
    if depth > max(num_tensors, _REPEATS):
        raise ValueError(
            f"config.json of {what} says that the model has {depth} layers, but its weights are {num_tensors} tensors. "
            "Write the number of layers that the weights have into config.json, or download the checkpoint again."
        )


def check_shapes(shapes: Mapping[str, tuple[int, ...]], config: PreTrainedConfig, what: str) -> None:
    """Refuse shapes that are not the model's, or lack one of a block's; transformers says how weights may be named."""
    if getattr(config, "quantization_config", None) is not None:
        return  # packed numbers have other shapes, which only the library that packed them knows
    contradiction = f"The weights of {what} contradict its config.json"
    end = "Whoever made the checkpoint must save it again."
    try:
        model = blank_model(config)
        _check_buffers(model)
        if {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}.items() <= shapes.items():
            return  # nothing to ask
        found = _loading_info(model, shapes)
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{contradiction}: {short(str(error))}") from error
    if wrong := sorted(found["mismatched_keys"]):
        name, stored, expected = wrong[0]
        more = f" ({len(wrong) - 1} more differ)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{contradiction}: {short(name)} is {list(stored)}, and by the config {list(expected)}{more}. {end}"
        )
    if absent := _missing_in_blocks(model, found["missing_keys"]):
        more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
        raise ValueError(f"The weights of {what} lack {', '.join(map(short, absent[:_NAMED]))}{more}. {end}")


def _loading_info(model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """What transformers misses or finds in another shape when it loads tensors of these shapes, without numbers."""
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_is_no_report)  # what it would report is said in an error here
    try:
        loaded: Any = type(model).from_pretrained(
            None,
            config=model.config,
            state_dict={name: torch.empty(shape, device="meta") for name, shape in shapes.items()},
            device_map="meta",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    finally:
        logger.removeFilter(_is_no_report)
    return dict(loaded[1])


def _check_buffers(model: PreTrainedModel) -> None:
    """Refuse tables that are in no file, as one of positions is, and that no memory would hold."""
    size = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if size > _LARGEST_BUFFERS:
        raise ValueError(f"by it the model has tables of {size} bytes that are in no file; {_LARGEST_BUFFERS} are allowed.")


def _missing_in_blocks(model: PreTrainedModel, missing: set[str]) -> list[str]:
    """Names of missing tensors in lists of blocks that are not missing as a whole, as decoders of encoders are."""
    found: list[str] = []
    for path in block_lists(model):
        names = {name for name in model.state_dict() if name.startswith(f"{path}.")}
        found += names & missing if names - missing else []
    return sorted(found)


def _is_no_report(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in record.getMessage()
