"""Cut a model to a size; the result is a plain model of the same class."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules import Router
from torch import nn

from st_matryoshka2d._hosts.torch import around
from st_matryoshka2d.cutting.truncated_transformer import cut_transformer
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.adapters import adapter_layers
from st_matryoshka2d.model.copies import share_memory
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.kind import Model, kind_of
from st_matryoshka2d.model.layers import Layers, of_depth
from st_matryoshka2d.model.pipeline import Pipeline, transformers_of
from st_matryoshka2d.model.readout import Readout, is_table, require_readouts, require_table
from st_matryoshka2d.model.sides import is_asymmetric, with_modules
from st_matryoshka2d.model.table import Table
from st_matryoshka2d.sizes import Size, full_size, layered, within

Made = TypeVar("Made", bound=BaseModel)


def cut_of(
    model: Model, num_layers: int | None, dim: int | None, layers: str | Sequence[int] | None = None
) -> tuple[Model, Declaration]:
    """Cut any model; also return what it declares with these layers, and do not warn of an untrained size."""
    if is_asymmetric(model) or is_table(model):
        return _narrowed(model, num_layers, dim), Declaration.of(model.config)
    pipeline = Pipeline.of(model, BaseModel)
    pipeline.kind.require_dims(dim, pipeline.full)
    if layers is not None and num_layers is not None:
        pipeline = pipeline.keeping(of_depth(layers, num_layers), [num_layers])
    return cut_to(pipeline, num_layers, dim), pipeline.declaration


def cut_to(pipeline: Pipeline, num_layers: int | None = None, dim: int | None = None) -> Any:
    """Cut a model."""
    model, full, kind = pipeline.model, pipeline.full, pipeline.kind
    depth = full.num_layers if num_layers is None else within(num_layers, full.num_layers, "num_layers", least=0)
    require_readouts(model, pipeline.declaration, full.num_layers, [depth])
    cut: Any = pipeline_at_depth(pipeline, depth, kind.cls)
    if not kind.no_dims:
        cut.truncate_dim = model.truncate_dim
    narrow(cut, full, dim, pipeline.declaration, pipeline.layers.kept(depth), _name(model))
    return cut


def narrow(cut: Any, full: Size, dim: int | None, declaration: Declaration, kept: Sequence[int], name: str | None) -> None:
    """Leave dims out of a model that has its layers, and write what it was cut from: a whole model of this name and size."""
    kind = kind_of(cut)
    kind.require_dims(dim, full)
    if dim is not None and not kind.no_dims:
        cut.truncate_dim = within(dim, full.dim, "dim")
    declared = kind.declared(declaration.cut(full_size(cut), full, kept, name))
    for transformer in transformers_of(cut):
        declared.write(transformer.model.config)


def _narrowed(model: Any, num_layers: int | None, dim: int | None) -> Any:
    """Cut an asymmetric model in dims, which its sides have in common, or a token table."""
    if is_table(model):
        if num_layers:
            raise UsageError(
                f"num_layers={num_layers}: a StaticEmbedding has no layers to cut. Leave `num_layers` out; "
                "`dim` makes its rows shorter."
            )
    elif num_layers is not None:
        raise UsageError(
            "Queries and documents have different depths in this model, so it cannot be cut in depth. Cut the model that it "
            f'was made of: asymmetric(aligned, query={num_layers}). Or cut one side: load(folder, route="query").'
        )
    cut = with_modules(model, {name: share_memory(part) for name, part in model.named_children()}, SentenceTransformer)
    full = full_size(model)
    cut.truncate_dim = model.truncate_dim if dim is None else within(dim, full.dim, "dim")
    for transformer in transformers_of(cut):
        config = transformer.model.config
        depth, width = layered(config).num_hidden_layers, full_size(cut).dim
        size, whole = Size(depth, width), Size(depth, full.dim)
        Declaration.of(config).cut(size, whole, range(depth), _name(model)).write(config)
    return cut


def without_adapters(pipeline: Pipeline) -> Pipeline:
    """Return the model itself, or if it has PEFT adapters, the model with merged ones."""
    if not any(map(adapter_layers, pipeline.networks)):
        return pipeline
    (name, first), *head = pipeline.model.named_children()
    merged = _first_at_depth(first, pipeline.layers, pipeline.full.num_layers, plain=True)
    return pipeline.remade({name: merged, **{path: share_memory(module) for path, module in head}})


def pipeline_at_depth(pipeline: Pipeline, num_layers: int, cls: type[Made], *, plain: bool = True) -> Made:
    """Make a pipeline of class `cls` over fewer layers, with shared weights.

    A plain one, which any program can load, has no readouts of lower depths, and adapters are
    merged into copied weights.
    """
    if num_layers == 0:
        return _without_network(pipeline, cls)
    (name, first), *head = pipeline.model.named_children()
    after = {path: _at_depth(module, num_layers, plain) for path, module in head}
    return with_modules(pipeline.model, {name: _first_at_depth(first, pipeline.layers, num_layers, plain), **after}, cls)


def _at_depth(module: nn.Module, num_layers: int, plain: bool) -> nn.Module:
    """Copy a module after the Transformer, a readout for the depth."""
    if isinstance(module, Readout) and num_layers < module.num_layers:
        module = module.cut(num_layers).plain() if plain else module.cut(num_layers)
    return share_memory(module)


def _without_network(pipeline: Pipeline, cls: type[Made]) -> Made:
    """Make the pipeline of the token table, which never sees a prompt."""
    rows: Any = require_table(pipeline.model)
    told = Table.of(rows, {**rows.fit, "model": _name(pipeline.model)})
    table = share_memory(told).requires_grad_(True)
    modules = [table, *map(share_memory, pipeline.trailing_normalize())]
    alone = with_modules(pipeline.model, {str(place): module for place, module in enumerate(modules)}, cls)
    alone.prompts, alone.default_prompt_name, alone.module_kwargs = dict.fromkeys(alone.prompts, ""), None, {}
    return alone


def _first_at_depth(first: Any, layers: Layers, num_layers: int, plain: bool) -> nn.Module:
    if not isinstance(first, Router):
        return cut_transformer(first, layers, num_layers, merge=plain)
    cuts: dict[nn.Module, nn.Module] = {}  # a Transformer that routes share stays shared
    routes: dict[str, nn.Module] = {}
    for name, way in first.sub_modules.items():
        (place, start), *rest = way.named_children()
        if start not in cuts:
            cuts[start] = _first_at_depth(start, layers, num_layers, plain)
        after = {path: _at_depth(module, num_layers, plain) for path, module in rest}
        routes[name] = around(way, {place: cuts[start], **after})
    return around(first, {"sub_modules": around(first.sub_modules, routes)})


def _name(model: Any) -> str | None:
    """Return the id on the Hub, unless the model was changed since it was loaded."""
    card = model.model_card_data
    origin = None if {"generated_from_trainer", "aligned"} & set(card.tags) else getattr(model.config, "name_or_path", None)
    for known in (card.model_id, origin):
        if known and re.fullmatch(r"[\w.-]+/[\w.-]+", known) and not Path(known).exists():
            return str(known)
    return None
