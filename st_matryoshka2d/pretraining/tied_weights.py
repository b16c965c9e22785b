"""Weights that two modules share, in a state dict once: safetensors refuses to write them twice."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from torch import nn

__all__ = ["register_tied_weights"]


def register_tied_weights(module: nn.Module) -> None:
    """Leave the second name of a shared weight out of `state_dict`, and find it again in `load_state_dict`.

    Args:
        module: Any module with modules that share weights, such as a head and an embedding layer.
    """
    module.register_state_dict_post_hook(_leave_out)
    module.register_load_state_dict_pre_hook(_put_back)


def _leave_out(module: nn.Module, state: MutableMapping[str, Any], prefix: str, metadata: Any) -> None:
    for name in _second_names(module):
        state.pop(prefix + name, None)


def _put_back(module: nn.Module, state: MutableMapping[str, Any], prefix: str, *_: Any) -> None:
    for name, first in _second_names(module).items():
        if prefix + first in state:
            state.setdefault(prefix + name, state[prefix + first])


def _second_names(module: nn.Module) -> dict[str, str]:
    firsts: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first for name, weight in named if (first := firsts.setdefault(id(weight), name)) != name}
