"""States of every depth from one forward pass, which records how it calls each block, for depths that skip some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from st_matryoshka2d.backbone import Backbone, hidden_states
from st_matryoshka2d.kept_layers import kept_layers, skips_layers

__all__ = ["Calls", "recorded", "state_at"]

# By layer: the arguments of its block but for the state, and the autocast context.
Calls: TypeAlias = dict[int, tuple[tuple[Any, ...], dict[str, Any], torch.autocast]]

_STATE = "hidden_states"


@contextmanager
def recorded(model: PreTrainedModel, backbone: Backbone) -> Iterator[Calls]:
    """Make the model return the state after every block, and record the calls of blocks if some depth skips layers."""
    calls: Calls = {}
    blocks = _blocks(model, backbone) if skips_layers(model.config) else []

    def record(layer: int) -> Any:
        def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            kind = next(block.parameters()).device.type
            autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            named = {name: _no_cache(value) for name, value in kwargs.items()}
            calls[layer] = tuple(map(_no_cache, args[1:])), named, autocast

        return before

    hooks = [block.register_forward_pre_hook(record(layer), with_kwargs=True) for layer, block in enumerate(blocks)]
    try:
        with hidden_states(model):
            yield calls
    finally:
        for hook in hooks:
            hook.remove()


def state_at(
    model: PreTrainedModel, backbone: Backbone, num_layers: int, states: Sequence[Tensor], calls: Mapping[int, Any]
) -> Tensor:
    """Return the output of the model cut to a depth below its own, (batch, tokens, hidden)."""
    # The first layers that it keeps without a gap were run already; the others run on their state.
    kept = kept_layers(model.config, num_layers)
    shared = next((place for place, layer in enumerate(kept) if layer != place), num_layers)
    if backbone.blocks is None:
        shared = num_layers  # ALBERT runs one block again and again
    state = states[shared]
    blocks = _blocks(model, backbone) if shared < num_layers else []
    for layer in kept[shared:]:
        args, kwargs, autocast = calls[layer]
        given = (args, {**kwargs, _STATE: state}) if _STATE in kwargs else ((state, *args), kwargs)
        with autocast:
            output = blocks[layer](*given[0], **given[1])
        state = output[0] if isinstance(output, tuple) else output
    return backbone.finish(model, state)


def _blocks(model: PreTrainedModel, backbone: Backbone) -> list[nn.Module]:
    """List the blocks of a model in order; none if one block is repeated."""
    return [] if backbone.blocks is None else list(model.get_submodule(backbone.blocks).children())


def _no_cache(value: Any) -> Any:
    """Drop a decoder's cache: it has the keys of the pass through all layers."""
    return None if isinstance(value, Cache) else value
