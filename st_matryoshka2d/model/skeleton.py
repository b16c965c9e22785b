"""Build a model from its config alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig, PreTrainedModel

# Parameters are made by these, to be filled by a checkpoint.
_WITHOUT_VALUES = (torch.empty, torch.rand, torch.randn)
_BUILT: set[type[PreTrainedModel]] = set()


def skeleton(cls: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model whose parameters take no memory; its buffers are real."""
    # Modes of torch hold for one thread. accelerate's `init_empty_weights` and transformers'
    # `no_init_weights` replace functions of torch for all threads; on the meta device, transformers
    # initialises no weights.
    with torch.device("meta"), _ValuesOnCPU():
        return cls(copy.deepcopy(config))


def register_outputs(model: PreTrainedModel) -> None:
    """Let transformers record the states of a model that was unpickled."""
    # Transformers registers what a class can record when its first model is built. A process that
    # only unpickles models, such as a worker, builds none, and would get no states.
    if type(model) not in _BUILT:
        skeleton(type(model), model.config)
        _BUILT.add(type(model))


class _ValuesOnCPU(TorchFunctionMode):
    """Within a device context, still make on the CPU whatever has values, such as a table of positions."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # With an empty tensor, transformers asks which device is set.
        if func in _WITHOUT_VALUES or (func is torch.tensor and isinstance(args[0], list) and not args[0]):
            return func(*args, **(kwargs or {}))
        with torch.device("cpu"):
            return func(*args, **(kwargs or {}))
