"""Compute a pipeline's output at every depth from one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from threading import RLock, get_ident
from typing import Any, TypeAlias

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache

from st_matryoshka2d._hosts.torch import around
from st_matryoshka2d.model.backbone import Backbone
from st_matryoshka2d.model.copies import register_outputs
from st_matryoshka2d.model.pipeline import route_taken, routes_of, unwrap
from st_matryoshka2d.model.readout import AT_DEPTH
from st_matryoshka2d.sizes import layered

# Arguments of a layer's block but for the state, and the autocast context; by layer, for depths
# that skip some.
Calls: TypeAlias = dict[int, tuple[tuple[Any, ...], dict[str, Any], torch.autocast]]

_STATE = "hidden_states"

# How many contexts make a config return states, and what it said before the first; by the config's
# id.
_ASKING: dict[int, tuple[int, bool | None]] = {}
_COUNTING = RLock()


def layer_features(
    model: nn.Module,
    features: Mapping[str, Any],
    layers: Sequence[int],
    backbones: Mapping[str, Backbone],
    *,
    normalize: bool = True,
    forward: Callable[..., dict[str, Any]] | None = None,
    **kwargs: Any,
) -> dict[int, dict[str, Any]]:
    """Run a batch once and return what the pipeline cut at each depth would; `forward` runs one that is cut already."""
    # The full model is called exactly once, through its wrapper if it has one, so that distributed
    # training synchronises.
    pipeline = unwrap(model)
    name = route_taken(pipeline, features)
    whole, backbone = routes_of(pipeline)[name], backbones[name]
    network = whole.transformer.model
    # A module that takes its depth per call runs exactly as deep as needed, whatever its default.
    deepest = backbone.num_layers if backbone.layers.skips else max(layers)
    depth = {"num_layers": deepest} if forward is None and "num_layers" in pipeline.get_model_kwargs() else {}
    # A pipeline that is cut already returns its states; the model as the user has it does so during
    # this call only.
    asked = returning_states(network.config) if forward is None else nullcontext()
    with asked, recorded(network, backbone) as calls:
        # a copy, as modules write into their input
        outputs = (forward or model)(dict(features), **depth, **kwargs)
    states: tuple[Tensor, ...] = outputs["all_layer_embeddings"]
    # A module that reads all layers would read deeper ones than a cut has.
    rest = {name: value for name, value in outputs.items() if name != "all_layer_embeddings"}
    taken = whole if normalize else whole.without_normalize()
    head = around(pipeline, taken.head)
    by_layer: dict[int, dict[str, Any]] = {}
    for num_layers in layers:
        last = num_layers == len(states) - 1
        if last and len(taken.head) == len(whole.head):
            by_layer[num_layers] = rest
            continue
        given = {**rest, AT_DEPTH: num_layers}
        if not last:
            given["token_embeddings"] = state_at(network, backbone, num_layers, states, calls)
        by_layer[num_layers] = SentenceTransformer.forward(head, given, **kwargs)
    return by_layer


@contextmanager
def returning_states(config: PreTrainedConfig) -> Iterator[None]:
    """Make a model with this config return the state after every block, within this context."""
    with ExitStack() as asked:
        for each in {id(part): part for part in (config, layered(config))}.values():
            asked.enter_context(_returning_states(each))
        yield


@contextmanager
def _returning_states(config: PreTrainedConfig) -> Iterator[None]:
    # Other threads that call the model get states that they did not ask for, which changes nothing
    # else. The last context that is left restores the setting.
    with _COUNTING:
        count, before = _ASKING.get(id(config), (0, config.output_hidden_states))
        _ASKING[id(config)] = count + 1, before
        config.output_hidden_states = True
    try:
        yield
    finally:
        with _COUNTING:
            count, before = _ASKING.pop(id(config))
            if count > 1:
                _ASKING[id(config)] = count - 1, before
            else:
                config.output_hidden_states = before


@contextmanager
def recorded(model: PreTrainedModel, backbone: Backbone) -> Iterator[Calls]:
    """Record the calls of blocks by this thread if some depth skips layers."""
    register_outputs(model)
    calls: Calls = {}
    blocks = backbone.blocks_of(model) if backbone.layers.skips else []
    thread = get_ident()

    def record(layer: int) -> Any:
        def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if get_ident() != thread:
                return
            kind = next(block.parameters()).device.type
            autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            named = {name: _no_cache(value) for name, value in kwargs.items()}
            calls[layer] = tuple(map(_no_cache, args[1:])), named, autocast

        return before

    with ExitStack() as hooks:
        for layer, block in enumerate(blocks):
            hooks.enter_context(block.register_forward_pre_hook(record(layer), with_kwargs=True))
        yield calls


def state_at(
    model: PreTrainedModel, backbone: Backbone, num_layers: int, states: Sequence[Tensor], calls: Mapping[int, Any]
) -> Tensor:
    """Return the output of the model cut to a depth below its own, (batch, tokens, hidden)."""
    return backbone.finish(model, state_before_tail(model, backbone, num_layers, states, calls))


def state_before_tail(
    model: PreTrainedModel, backbone: Backbone, num_layers: int, states: Sequence[Tensor], calls: Mapping[int, Any]
) -> Tensor:
    """Return what the last layer of a depth below the model's own returns, (batch, tokens, hidden)."""
    # The first layers that it keeps without a gap were run already; the others run on their state.
    layers = backbone.layers.kept(num_layers)
    # ALBERT runs one block again and again
    shared = num_layers if backbone.blocks is None else backbone.layers.shared(num_layers)
    state = states[shared]
    blocks = backbone.blocks_of(model)
    for layer in layers[shared:]:
        args, kwargs, autocast = calls[layer]
        given = (args, {**kwargs, _STATE: state}) if _STATE in kwargs else ((state, *args), kwargs)
        with autocast:
            output = blocks[layer](*given[0], **given[1])
        state = output[0] if isinstance(output, tuple) else output
    return state


def _no_cache(value: Any) -> Any:
    """Drop a decoder's cache: it has the keys of the pass through all layers."""
    return None if isinstance(value, Cache) else value
