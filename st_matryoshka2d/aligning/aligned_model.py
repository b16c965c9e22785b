"""The model before it is aligned, and with the maps of all depths in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from torch import nn

from st_matryoshka2d._hosts.sentence_transformers import card_text
from st_matryoshka2d._hosts.torch import around
from st_matryoshka2d.aligning.other_embeddings import Target
from st_matryoshka2d.aligning.own_space import Fit
from st_matryoshka2d.cutting.exactness import check_routes
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.copies import share_memory
from st_matryoshka2d.model.identity import name_apart
from st_matryoshka2d.model.layers import ENDS, FIRST, Choice, ends
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import Readout, least_depth
from st_matryoshka2d.model.readout_files import linear_of
from st_matryoshka2d.sizes import Size, sizes_product

# The losses of sentence-transformers and the paper's title. The word alone is in links of every
# card that it writes.
_TRAINED = re.compile(r"matryoshka(2d)?loss|matryoshka representation", re.IGNORECASE)


def starting_point(pipeline: Pipeline, layers: Choice | None) -> Pipeline:
    """Return the model with the layers that its depths will keep."""
    if layers is not None:
        return pipeline.keeping(layers)
    if pipeline.layers.by_depth != ENDS:
        return pipeline
    total = pipeline.full.num_layers
    depths = range(1, total)
    # the first layer alone is no model of some families, whose last layer is of another kind
    for choice in (ENDS, {1: [total], **{depth: ends(depth, total) for depth in depths[1:]}}):
        chosen = pipeline.keeping(choice)
        try:
            check_routes(chosen, depths)
        except ValueError:
            continue
        return chosen
    return pipeline.keeping(FIRST)  # its layers only work in a row


def trained_narrow(pipeline: Pipeline) -> bool:
    """Whether the model was trained for several dims, as its config or its card says: its first coordinates are the best."""
    declared, model = pipeline.declaration, pipeline.model
    card, dims = model.model_card_data, declared.dims
    # A model cut in depth alone declares its full width.
    narrow = min(dims) < pipeline.full.dim if dims else bool(declared.is_matryoshka)
    return (
        narrow or any(_TRAINED.search(str(tag)) for tag in card.tags or []) or bool(_TRAINED.search(card_text(model) or ""))
    )


def check_modules(pipeline: Pipeline) -> None:
    """Refuse a Router that other modules follow than `Normalize`: a readout comes before that."""
    _, *after = pipeline.model.children()
    if pipeline.has_router and any(not isinstance(module, Normalize) for module in after):
        raise UsageError(
            f"The Router is followed by {[type(module).__name__ for module in after]}, but "
            "readouts must come after all modules except Normalize. Move these modules to the end "
            "of each route."
        )


def placed(pipeline: Pipeline, fit: Fit) -> Pipeline:
    """Insert the maps of a fit into a pipeline that shares the weights of the model."""
    model = pipeline.model
    (name, first), *after = model.named_children()
    dtype = model.dtype or torch.float32
    if not isinstance(first, Router):
        return pipeline.remade(_at_the_end(model, fit, "", dtype))
    ways = {}
    for route, way in first.sub_modules.named_children():
        ways[route] = around(way, _at_the_end(way, fit, route, dtype))
    router = around(first, {"sub_modules": around(first.sub_modules, ways)})
    rest = {path: share_memory(module) for path, module in after}
    return pipeline.remade({name: router, **rest})


def without_readouts(pipeline: Pipeline) -> Pipeline:
    """Return the model as it was before it was aligned, with the layers of its depths."""
    parts = [item for item in pipeline.model.named_children() if not isinstance(item[1], Readout)]
    if len(parts) == len(pipeline.model):
        return pipeline
    plain = pipeline.remade({name: share_memory(module) for name, module in parts})
    return replace(plain, declaration=replace(plain.declaration, readouts=None))


def _at_the_end(way: nn.Module, fit: Fit, route: str, dtype: torch.dtype) -> dict[str, nn.Module]:
    """Insert the maps at the end of a route, before `Normalize`; merge them into those there."""
    modules = {name: share_memory(module) for name, module in way.named_children()}
    added: list[nn.Module] = []
    while isinstance(last := [*modules.values()][-1], Normalize):
        added.append(modules.popitem()[1])
    readouts, table = fit.readouts[route], None
    if isinstance(last, Readout):
        modules.popitem()
        table = last.table  # it maps to the coordinates of the whole model, which stay
        readouts = {depth: readout.after(last.at(depth)) for depth, readout in readouts.items()}
    linears = {}
    for depth, readout in readouts.items():
        linears[depth] = linear_of(readout.weight.to(dtype), readout.bias.to(dtype))
    total = max(linears)
    added.insert(0, Readout(total, linears.pop(total), linears, table))
    if fit.hidden is not None:  # another space has lengths of its own
        added = [_dense(fit.hidden, dtype), added[0], *([Normalize()] if fit.unit else [])]
    device = next(way.parameters()).device
    for module in added:
        modules[str(len(modules))] = module.to(device).train(last.training)
    return modules


def _dense(hidden: nn.Linear, dtype: torch.dtype) -> Dense:
    with torch.device("meta"):  # the initial weights are not used
        dense = Dense(hidden.in_features, hidden.out_features, activation_function=nn.ReLU())
    dense.linear = hidden.to(dtype)
    return dense


def declared(
    aligned: Pipeline, model: SentenceTransformer, small: Sequence[Size], fit: Fit, target: Target | None
) -> Pipeline:
    """Write maps, sizes, their agreement and a new name into the config and card."""
    aligned.model.model_card_data.add_tags("aligned")
    full, what, into = aligned.full, "aligned", None
    depths = range(1, full.num_layers + 1)
    if target is None:
        narrow = {Size(full.num_layers, size.dim) for size in small}
        sizes = {*small, *narrow, *(Size(depth, full.dim) for depth in depths)}
    else:
        sizes, into = {*sizes_product(depths, target.dims)}, target.name
        what = "into-" + re.sub(r"[^\w.-]+", "-", into.rpartition("/")[2])
        if target.similarity is not None:
            aligned.model.similarity_fn_name = target.similarity
    readouts = [*range(least_depth(aligned.model), 1), *depths[:-1]]
    name_apart(aligned.model, model, what)
    told = aligned.declaration.aligned(sizes, readouts, fit.agreement, into)
    return aligned.declare(replace(told, layers=aligned.layers.written()))
