"""What a model is, asked once: its routes, each from a Transformer whose depth can be chosen to the embedding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules import Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import WeightedLayerPooling
from torch import nn
from transformers import PreTrainedModel

from st_matryoshka2d._hosts.sentence_transformers import route_name
from st_matryoshka2d._hosts.torch import COMPILED
from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.model.adapters import declare_from_adapters
from st_matryoshka2d.model.backbone import Backbone, find_backbone
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.kind import Kind, kind_of
from st_matryoshka2d.model.layers import Choice, Layers, rechosen
from st_matryoshka2d.model.network import core, refuse_compiled, require_network
from st_matryoshka2d.model.sides import on_route, with_modules
from st_matryoshka2d.sizes import Size, full_size, layered


@dataclass(frozen=True)
class Route:
    """The modules that a text passes through: the Transformer, whose depth can be chosen, and by name those after it."""

    transformer: Transformer
    head: Mapping[str, nn.Module]

    def without_normalize(self) -> Route:
        """Return the route without the final `Normalize` modules, where the length of the embedding is lost."""
        head = list(self.head.items())
        while head and isinstance(last := head[-1][1], Normalize) and last.module_input_name == "sentence_embedding":
            head.pop()
        return Route(self.transformer, dict(head))


def unwrap(model: nn.Module) -> SentenceTransformer:
    """Return the pipeline inside `DistributedDataParallel` and `torch.compile` wrappers."""
    inner: Any = model
    while not isinstance(inner, SentenceTransformer):
        wrapped = getattr(inner, COMPILED, getattr(inner, "module", None))
        if wrapped is None:
            raise UsageTypeError(
                f"Expected a SentenceTransformer, got {type(model).__name__} (innermost: {type(inner).__name__})."
            )
        inner = wrapped
    return inner


def transformers_of(model: nn.Module) -> list[Transformer]:
    """List the modules with layers, also of a model that has no single depth."""
    return [module for module in model.modules() if isinstance(module, Transformer)]


@dataclass(frozen=True)
class Pipeline:
    """A checked model: each of its routes starts with a Transformer whose depth can be chosen."""

    model: SentenceTransformer  # or of the class that `of` was told
    # those of its `Router` by name, or the only one under an empty name
    routes: Mapping[str, Route]
    declaration: Declaration  # what the model says about itself
    layers: Layers  # of each depth

    @classmethod
    def of(cls, model: object, among: type[Any] = SentenceTransformer) -> Pipeline:
        """Check a model; refuse one of another class, or that cannot be cut in depth."""
        if not isinstance(model, among):
            refuse_compiled(model)
            hint = f" Load it first: SentenceTransformer({model!r})." if isinstance(model, str) else ""
            if isinstance(model, BaseModel):
                hint = " Other classes are taken where no embedding of a text is needed, as by heal and truncate."
            expected = "model of sentence-transformers" if among is BaseModel else among.__name__
            raise UsageTypeError(f"Expected a {expected}, got {type(model).__name__}.{hint}")
        checked: Any = model
        routes = routes_of(checked)  # which reads what adapters declare
        declaration = Declaration.of(checked.config)
        return cls(checked, routes, declaration, Layers.of(checked.config, declaration))

    @cached_property
    def kind(self) -> Kind:
        """What its class is."""
        return kind_of(self.model)

    @cached_property
    def full(self) -> Size:
        """The full size, `Size(N, D)`."""
        return full_size(self.model)

    @cached_property
    def backbones(self) -> Mapping[str, Backbone]:
        """The layers of each route; a family that cannot be cut is refused here."""
        return {name: find_backbone(route.transformer.model, self.layers) for name, route in self.routes.items()}

    @property
    def has_router(self) -> bool:
        """Whether the routes are those of a `Router`."""
        return "" not in self.routes

    @property
    def transformer(self) -> Transformer:
        """The module whose depth can be chosen, of a model without a `Router`."""
        return self.routes[""].transformer

    @property
    def networks(self) -> list[PreTrainedModel]:
        """The Hugging Face model of each route."""
        return [route.transformer.model for route in self.routes.values()]

    def remade(self, modules: Mapping[str, nn.Module]) -> Pipeline:
        """Make a pipeline of other modules, with the settings and the card of the model."""
        model: Any = with_modules(self.model, modules, self.kind.cls)
        if not self.kind.no_dims:
            model.truncate_dim = self.model.truncate_dim
        return replace(Pipeline.of(model, self.kind.cls), declaration=self.declaration, layers=self.layers)

    def keeping(self, choice: Choice, depths: Iterable[int] = ()) -> Pipeline:
        """Return the pipeline with other layers; of these depths, none may have a readout that was fitted to others."""
        layers, declaration = rechosen(self.layers, self.declaration, choice, depths)
        return replace(self, declaration=declaration, layers=layers)

    def declare(self, declaration: Declaration) -> Pipeline:
        """Write a declaration into the configs of the networks."""
        for network in self.networks:
            declaration.write(network.config)
        return replace(self, declaration=Declaration.of(self.model.config))

    def require_padding(self) -> None:
        """Refuse a model whose tokenizer cannot pad a batch."""
        tokenizers = [route.transformer.tokenizer for route in self.routes.values()]
        if any(tokenizer is not None and tokenizer.pad_token is None for tokenizer in tokenizers):
            raise UsageError(
                "The tokenizer of this model has no padding token, which a batch of texts needs. Set one, for example "
                "`model.tokenizer.pad_token = model.tokenizer.eos_token`, and save the model with it."
            )

    def trailing_normalize(self) -> list[nn.Module]:
        """Return the `Normalize` modules at the end; refuse routes of which only some have one."""
        ends = {name: list(way.head.values())[len(way.without_normalize().head) :] for name, way in self.routes.items()}
        if len({bool(end) for end in ends.values()}) > 1:
            without = [name for name, end in ends.items() if not end]
            raise UsageError(
                f"Routes {without} of the Router lack the Normalize of the others. Put one Normalize after the Router."
            )
        return next(iter(ends.values()))


def routes_of(model: BaseModel) -> dict[str, Route]:
    """Check the modules of a model, and return its routes."""
    (_, first), *after = model.named_children()
    has_head = kind_of(model).has_head
    if isinstance(first, Router):
        return _routes_of(first, dict(after), has_head)
    return {"": Route(_checked(first, [module for _, module in after], has_head), dict(after))}


def route_taken(model: SentenceTransformer, features: Mapping[str, Any]) -> str:
    """Return the name of the route that a batch takes."""
    first = next(model.children())
    return route_name(first, features) if isinstance(first, Router) else ""


def _routes_of(router: Router, after: Mapping[str, nn.Module], has_head: bool) -> dict[str, Route]:
    routes: dict[str, Route] = {}
    widths: dict[str, int] = {}
    for name, modules in router.sub_modules.items():
        start, *rest = modules.children()
        head = {f"{name}.{index}": module for index, module in enumerate(rest, 1)}
        for place, following in after.items():
            head |= {".".join([place, *path]): module for path, module in on_route(following, name).items()}
        routes[name] = Route(_checked(start, head.values(), has_head, f"The route {name!r} of the Router"), head)
        known: list[Any] = [module for module in modules.children() if hasattr(module, "get_embedding_dimension")]
        # that of the last module that has one; a `SpladePooling` counts its tokens when it first runs
        widths[name] = int(known[-1].get_embedding_dimension() or routes[name].transformer.model.config.vocab_size)
    depths = {name: layered(route.transformer.model.config).num_hidden_layers for name, route in routes.items()}
    if len(set(depths.values())) > 1:
        raise UsageError(
            f"The routes of the Router differ in depth, {depths}, so the model has no single number of layers, which is "
            'needed here. Load the side that you mean, such as load(folder, route="query").'
        )
    if len(set(widths.values())) > 1:
        raise UsageError(f"The routes of the Router differ in width, {widths}: their embeddings cannot be compared.")
    return routes


def _checked(first: nn.Module, head: Iterable[nn.Module], has_head: bool, what: str = "The model") -> Transformer:
    if not isinstance(first, Transformer):
        refuse_compiled(first)
        raise UsageError(
            f"{what} starts with {type(first).__name__}, which has no layers to choose from; a model that starts with a "
            "sentence_transformers Transformer module is needed. To reduce only the dims, pass truncate_dim to "
            "SentenceTransformer or to encode."
        )
    require_network(first.model)
    declare_from_adapters(first.model)
    text = first.modality_config.get("text", {})
    made = "logits" if has_head and core(first.model) is not first.model else "last_hidden_state"
    if (text.get("method"), text.get("method_output_name")) != ("forward", made):
        raise UsageError(
            f"The Transformer makes {first.module_output_name!r} of text from {text or 'nothing'}; "
            f"only what is read from `{made}` exists at every depth."
        )
    if any(isinstance(module, WeightedLayerPooling) for module in head):
        raise UsageError("WeightedLayerPooling mixes all layers, so a model with fewer layers cannot equal a part of it.")
    transformer: Transformer = first
    return transformer
