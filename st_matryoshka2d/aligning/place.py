"""Insert readouts into the pipeline of a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from torch import nn

from st_matryoshka2d._hosts.torch import around
from st_matryoshka2d.aligning.ridge import Affine
from st_matryoshka2d.model.identity import inherit_card
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import Readout, expect_readouts
from st_matryoshka2d.model.readout_files import linear_of
from st_matryoshka2d.model.sides import with_modules
from st_matryoshka2d.model.trial import share_memory


def check_modules(model: SentenceTransformer) -> None:
    """Refuse a Router that other modules follow than `Normalize`: a readout has its place before that."""
    first, *after = model.children()
    if isinstance(first, Router) and any(not isinstance(module, Normalize) for module in after):
        raise ValueError(
            f"The Router is followed by {[type(module).__name__ for module in after]}, but readouts must come after all "
            "modules except Normalize. Move these modules to the end of each route."
        )


def placed(model: SentenceTransformer, readouts: Mapping[str, Mapping[int, Affine]]) -> SentenceTransformer:
    """Insert the readouts into a pipeline that shares the weights of the model."""
    first = next(model.children())
    dtype = model.dtype or torch.float32
    if not isinstance(first, Router):
        return with_modules(model, _with_readout(model, readouts[""], dtype), SentenceTransformer)
    ways = {name: around(way, _with_readout(way, readouts[name], dtype)) for name, way in first.sub_modules.named_children()}
    (name, _), *after = model.named_children()
    router = around(first, {"sub_modules": around(first.sub_modules, ways)})
    return with_modules(model, {name: router, **{path: share_memory(module) for path, module in after}}, SentenceTransformer)


def placed_into(
    model: SentenceTransformer, hidden: nn.Linear | None, maps: Mapping[int, Affine], *, unit: bool
) -> SentenceTransformer:
    """Put a hidden layer and the maps of its features at the end of a pipeline, and a `Normalize` if they have length 1."""
    dtype, total = model.dtype or torch.float32, max(maps)
    head = dict(Pipeline.of(model).routes[""].without_normalize().head)
    modules = [next(model.children()), *head.values()]
    linears = {depth: linear_of(each.weight.to(dtype), each.bias.to(dtype)) for depth, each in maps.items()}
    added: list[nn.Module] = [Readout(total, linears.pop(total), linears)]
    if hidden is not None:
        with torch.device("meta"):  # the initial weights are not used
            dense = Dense(hidden.in_features, hidden.out_features, activation_function=nn.ReLU())
        dense.linear = hidden.to(dtype)
        added.insert(0, dense)
    placed = [*map(share_memory, modules), *(each.to(model.device).train(model.training) for each in added)]
    if unit:
        placed.append(Normalize())
    return with_modules(model, {str(place): module for place, module in enumerate(placed)}, SentenceTransformer)


def without_readouts(model: SentenceTransformer) -> SentenceTransformer:
    """Return the model as it was before it was aligned, with the layers of its depths; weights are shared."""
    modules = {name: share_memory(part) for name, part in model.named_children() if not isinstance(part, Readout)}
    if len(modules) == len(model):
        return model
    made = with_modules(model, modules, SentenceTransformer)
    inherit_card(made, model)
    transformer = Pipeline.of(made).transformer
    del transformer.model.config.matryoshka_readouts
    expect_readouts(transformer, False)
    return made


def _with_readout(way: nn.Module, readouts: Mapping[int, Affine], dtype: torch.dtype) -> dict[str, nn.Module]:
    """Insert a readout at the end of a route, before `Normalize`; merge it into one that is there already."""
    modules = {name: share_memory(module) for name, module in way.named_children()}
    tail = [modules.popitem()[1]] if isinstance([*modules.values()][-1], Normalize) else []
    place, before, total, table = str(len(modules)), [*modules.values()][-1], max(readouts), None
    if isinstance(before, Readout):
        place, _ = modules.popitem()
        table = before.table  # it maps to the coordinates of the whole model, which stay
        readouts = {n: readout.after(before.at(n)) for n, readout in readouts.items()}
    linears = {n: linear_of(readout.weight.to(dtype), readout.bias.to(dtype)) for n, readout in readouts.items()}
    readout = Readout(total, linears.pop(total), linears, table).to(next(way.parameters()).device).train(before.training)
    return {**modules, place: readout, **{str(len(modules) + 1): last for last in tail}}
