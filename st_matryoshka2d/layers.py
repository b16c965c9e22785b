"""Compute a pipeline's output at every depth from one forward pass."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import WeightedLayerPooling
from torch import Tensor, nn

from st_matryoshka2d.backbone import Backbone
from st_matryoshka2d.kept_layers import skips_layers
from st_matryoshka2d.readout import AT_DEPTH
from st_matryoshka2d.recorded import Calls, recorded, state_at


@dataclass(frozen=True)
class Route:
    """The modules that a text passes through in a pipeline.

    Attributes:
        transformer: The first module, whose depth can be chosen.
        head: The modules after it, by name, in order.
    """

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
    if not isinstance(model, SentenceTransformer):
        raise TypeError(f"Expected a SentenceTransformer, got {type(model).__name__}.")
    first, *head = model.children()
    return _checked(first, head)


def routes_of(model: SentenceTransformer) -> dict[str, Route]:
    """Return the routes through a pipeline by name: those of its `Router`, or the only one under an empty name."""
    if not isinstance(model, SentenceTransformer):
        raise TypeError(f"Expected a SentenceTransformer, got {type(model).__name__}.")
    (_, first), *after = model.named_children()
    if not isinstance(first, Router):
        return {"": Route(transformer_of(model), dict(after))}
    routes: dict[str, Route] = {}
    widths: dict[str, int] = {}
    for name, modules in first.sub_modules.items():
        start, *rest = modules.children()
        head = {**{f"{name}.{index}": module for index, module in enumerate(rest, 1)}, **dict(after)}
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
    features: dict[str, Any],
    layers: Sequence[int],
    backbones: Mapping[str, Backbone],
    *,
    normalize: bool = True,
) -> dict[int, dict[str, Any]]:
    """Run a batch once and return what the pipeline cut at each depth would return."""
    # The full model is called exactly once, through its wrapper if it has one, so that distributed training synchronises.
    pipeline = unwrap(model)
    name = route_taken(pipeline, features)
    # A module that takes its depth per call runs exactly as deep as needed, whatever its default.
    network, backbone = routes_of(pipeline)[name].transformer.model, backbones[name]
    deepest = backbone.num_layers if skips_layers(network.config) else max(layers)
    kwargs = {"num_layers": deepest} if "num_layers" in pipeline.get_model_kwargs() else {}
    with recorded(network, backbone) as calls:
        outputs = model(dict(features), **kwargs)  # a copy, as modules write into their input
    return split_layers(pipeline, outputs, layers, backbone, calls, route=name, normalize=normalize)


def split_layers(
    pipeline: SentenceTransformer,
    outputs: dict[str, Any],
    layers: Sequence[int],
    backbone: Backbone,
    calls: Calls,
    *,
    route: str = "",
    normalize: bool = True,
    **kwargs: Any,
) -> dict[int, dict[str, Any]]:
    """Run the modules after the Transformer once for each depth."""
    whole = routes_of(pipeline)[route]
    taken = whole if normalize else whole.without_normalize()
    head = copy.copy(pipeline)
    head._modules = dict(taken.head)
    states: tuple[Tensor, ...] = outputs["all_layer_embeddings"]
    # A module that reads all layers would read deeper ones than a cut has.
    rest = {name: value for name, value in outputs.items() if name != "all_layer_embeddings"}
    by_layer: dict[int, dict[str, Any]] = {}
    for num_layers in layers:
        last = num_layers == len(states) - 1
        if last and len(taken.head) == len(whole.head):
            by_layer[num_layers] = rest
        else:
            model = whole.transformer.model
            state = rest["token_embeddings"] if last else state_at(model, backbone, num_layers, states, calls)
            given: dict[str, Any] = {**rest, "token_embeddings": state, AT_DEPTH: num_layers}
            by_layer[num_layers] = SentenceTransformer.forward(head, given, **kwargs)
    return by_layer


def _checked(first: nn.Module, head: Iterable[nn.Module], what: str = "The model") -> Transformer:
    if not isinstance(first, Transformer):
        raise ValueError(
            f"{what} starts with {type(first).__name__}, which has no layers to choose from; "
            "a model that starts with a sentence_transformers Transformer module is needed."
        )
    text = first.modality_config.get("text", {})
    if (text.get("method"), text.get("method_output_name")) != ("forward", "last_hidden_state"):
        raise ValueError(
            f"The Transformer makes {first.module_output_name!r} of text from {text or 'nothing'}; "
            "only token embeddings read from `last_hidden_state` exist at every depth."
        )
    for module in head:
        if isinstance(module, WeightedLayerPooling):
            raise ValueError(
                "WeightedLayerPooling mixes all layers, so a model with fewer layers cannot equal a part of it."
            )
    transformer: Transformer = first
    return transformer
