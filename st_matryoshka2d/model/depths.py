"""Compute a pipeline's output at every depth from one forward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from threading import get_ident
from typing import Any, TypeAlias

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import WeightedLayerPooling
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache

from st_matryoshka2d.model.backbone import Backbone, refuse_compiled
from st_matryoshka2d.model.fork_lock import ForkLock
from st_matryoshka2d.model.readout import AT_DEPTH
from st_matryoshka2d.model.skeleton import register_outputs
from st_matryoshka2d.model.trained_sizes import kept_layers, skips_layers

# Arguments of a layer's block but for the state, and the autocast context; by layer, for depths that skip some.
Calls: TypeAlias = dict[int, tuple[tuple[Any, ...], dict[str, Any], torch.autocast]]

_STATE = "hidden_states"

# How many contexts make a config return states, and what it said before the first; by the config's id.
_ASKING: dict[int, tuple[int, bool | None]] = {}
_COUNTING = ForkLock()


@dataclass(frozen=True)
class Route:
    """The modules that a text passes through: the Transformer, whose depth can be chosen, and by name those after it."""

    transformer: Transformer
    head: Mapping[str, nn.Module]

    def without_normalize(self) -> Route:
        """Return the route without the final `Normalize` modules, where the length of the embedding is lost."""
        kept = list(self.head.items())
        while kept and isinstance(last := kept[-1][1], Normalize) and last.module_input_name == "sentence_embedding":
            kept.pop()
        return Route(self.transformer, dict(kept))


def unwrap(model: nn.Module) -> SentenceTransformer:
    """Return the pipeline inside `DistributedDataParallel` and `torch.compile` wrappers."""
    inner: Any = model
    while not isinstance(inner, SentenceTransformer):
        wrapped = getattr(inner, "_orig_mod", getattr(inner, "module", None))
        if wrapped is None:
            raise TypeError(
                f"Expected a SentenceTransformer, got {type(model).__name__} (innermost: {type(inner).__name__})."
            )
        inner = wrapped
    return inner


def transformer_of(model: SentenceTransformer) -> Transformer:
    """Return the module whose depth can be chosen."""
    _require_pipeline(model)
    first, *head = model.children()
    return _checked(first, head)


def routes_of(model: SentenceTransformer) -> dict[str, Route]:
    """Return the routes through a pipeline by name: those of its `Router`, or the only one under an empty name."""
    _require_pipeline(model)
    (_, first), *after = model.named_children()
    if not isinstance(first, Router):
        return {"": Route(transformer_of(model), dict(after))}
    routes: dict[str, Route] = {}
    widths: dict[str, int] = {}
    for name, modules in first.sub_modules.items():
        start, *rest = modules.children()
        head = {f"{name}.{index}": module for index, module in enumerate(rest, 1)} | dict(after)
        routes[name] = Route(_checked(start, head.values(), f"The route {name!r} of the Router"), head)
        known: list[Any] = [module for module in modules.children() if hasattr(module, "get_embedding_dimension")]
        widths[name] = int(known[-1].get_embedding_dimension())  # the last module that has one
    depths = {name: route.transformer.model.config.num_hidden_layers for name, route in routes.items()}
    if len(set(depths.values())) > 1:
        raise ValueError(f"The routes of the Router differ in depth, {depths}; all must have as many layers.")
    if len(set(widths.values())) > 1:
        raise ValueError(f"The routes of the Router differ in width, {widths}: their embeddings cannot be compared.")
    return routes


def route_taken(pipeline: SentenceTransformer, features: Mapping[str, Any]) -> str:
    """Return the name of the route that a batch takes."""
    first = next(pipeline.children())
    if not isinstance(first, Router):
        return ""
    return str(first._resolve_route(task=features.get("task"), modality=features.get("modality")))


def trailing_normalize(model: SentenceTransformer) -> list[nn.Module]:
    """Return the `Normalize` modules at the end of a pipeline; refuse routes of which only some have one."""
    routes = routes_of(model)
    ends = {name: list(route.head.values())[len(route.without_normalize().head) :] for name, route in routes.items()}
    if len({bool(end) for end in ends.values()}) > 1:
        without = [name for name, end in ends.items() if not end]
        raise ValueError(
            f"Routes {without} of the Router lack the Normalize of the others. Put one Normalize after the Router."
        )
    return next(iter(ends.values()))


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
    # The full model is called exactly once, through its wrapper if it has one, so that distributed training synchronises.
    pipeline = unwrap(model)
    name = route_taken(pipeline, features)
    whole, backbone = routes_of(pipeline)[name], backbones[name]
    network = whole.transformer.model
    # A module that takes its depth per call runs exactly as deep as needed, whatever its default.
    deepest = backbone.num_layers if skips_layers(network.config) else max(layers)
    depth = {"num_layers": deepest} if forward is None and "num_layers" in pipeline.get_model_kwargs() else {}
    # A pipeline that is cut already returns its states; the model as the user has it does so during this call only.
    asked = returning_states(network.config) if forward is None else nullcontext()
    with asked, recorded(network, backbone) as calls:
        outputs = (forward or model)(dict(features), **depth, **kwargs)  # a copy, as modules write into their input
    states: tuple[Tensor, ...] = outputs["all_layer_embeddings"]
    # A module that reads all layers would read deeper ones than a cut has.
    rest = {name: value for name, value in outputs.items() if name != "all_layer_embeddings"}
    taken = whole if normalize else whole.without_normalize()
    head = copy.copy(pipeline)
    head._modules = dict(taken.head)
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
    # Other threads that call the model get states that they did not ask for, which changes nothing else. The last context
    # that is left restores the setting.
    with _COUNTING():
        count, before = _ASKING.get(id(config), (0, config.output_hidden_states))
        _ASKING[id(config)] = count + 1, before
        config.output_hidden_states = True
    try:
        yield
    finally:
        with _COUNTING():
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
    blocks = backbone.blocks_of(model) if skips_layers(model.config) else []
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
    # The first layers that it keeps without a gap were run already; the others run on their state.
    kept = kept_layers(model.config, num_layers)
    shared = next((place for place, layer in enumerate(kept) if layer != place), num_layers)
    if backbone.blocks is None:
        shared = num_layers  # ALBERT runs one block again and again
    state = states[shared]
    blocks = backbone.blocks_of(model)
    for layer in kept[shared:]:
        args, kwargs, autocast = calls[layer]
        given = (args, {**kwargs, _STATE: state}) if _STATE in kwargs else ((state, *args), kwargs)
        with autocast:
            output = blocks[layer](*given[0], **given[1])
        state = output[0] if isinstance(output, tuple) else output
    return backbone.finish(model, state)


def _no_cache(value: Any) -> Any:
    """Drop a decoder's cache: it has the keys of the pass through all layers."""
    return None if isinstance(value, Cache) else value


def _require_pipeline(model: object) -> None:
    if not isinstance(model, SentenceTransformer):
        refuse_compiled(model)
        raise TypeError(f"Expected a SentenceTransformer, got {type(model).__name__}.")


def _checked(first: nn.Module, head: Iterable[nn.Module], what: str = "The model") -> Transformer:
    if not isinstance(first, Transformer):
        refuse_compiled(first)
        raise ValueError(
            f"{what} starts with {type(first).__name__}, which has no layers to choose from; a model that starts with a "
            "sentence_transformers Transformer module is needed. To reduce only the dims, pass truncate_dim to "
            "SentenceTransformer or to encode."
        )
    text = first.modality_config.get("text", {})
    if (text.get("method"), text.get("method_output_name")) != ("forward", "last_hidden_state"):
        raise ValueError(
            f"The Transformer makes {first.module_output_name!r} of text from {text or 'nothing'}; "
            "only token embeddings read from `last_hidden_state` exist at every depth."
        )
    if any(isinstance(module, WeightedLayerPooling) for module in head):
        raise ValueError("WeightedLayerPooling mixes all layers, so a model with fewer layers cannot equal a part of it.")
    transformer: Transformer = first
    return transformer
