"""Load a cut: only the weights that it needs are downloaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules import Router

from st_matryoshka2d._hosts.sentence_transformers import load_with_classes
from st_matryoshka2d._hosts.transformers import one_load_at_a_time, quiet_loading
from st_matryoshka2d.cutting.cut import narrow
from st_matryoshka2d.cutting.exactness import check_loaded
from st_matryoshka2d.cutting.truncate import truncate
from st_matryoshka2d.cutting.truncated_transformer import TruncatedTransformer
from st_matryoshka2d.cutting.untrained import warn_if_untrained
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.hub.checkpoint import Checkpoint
from st_matryoshka2d.hub.load_readouts import add_readouts, load_table, own_tables, require_declared
from st_matryoshka2d.hub.reach import opened
from st_matryoshka2d.hub.source import Source, source_of
from st_matryoshka2d.hub.weights import check_files, check_weights, read_config
from st_matryoshka2d.hub.weights_fit import check_complete
from st_matryoshka2d.model.adapters import declare_from_adapters
from st_matryoshka2d.model.copies import settled
from st_matryoshka2d.model.cut_config import Cut
from st_matryoshka2d.model.identity import name_apart, replace_card
from st_matryoshka2d.model.kind import kind_of
from st_matryoshka2d.model.layers import depth_of_choice
from st_matryoshka2d.model.pipeline import Pipeline, transformers_of
from st_matryoshka2d.model.sides import side_of
from st_matryoshka2d.sizes import Size, full_size, resolve_size
from st_matryoshka2d.vocabulary.watch import watch

# Module types of `modules.json` that are this package's own class: no code of the checkpoint runs
# for them.
_OURS = {f"{TruncatedTransformer.__module__}.{TruncatedTransformer.__name__}": TruncatedTransformer}


def load(
    name_or_path: str | os.PathLike[str],
    size: Size | str | None = None,
    *,
    num_layers: int | None = None,
    dim: int | None = None,
    layers: str | Sequence[int] | None = None,
    route: str | None = None,
    allow_bin: bool = False,
    **kwargs: Any,
) -> Any:
    """Load a model cut to a size; the weights of the other layers are not downloaded.

    Downloaded pieces stay in the Hub's cache. The weights must be safetensors: nothing is
    unpickled. Code of the repository runs only with `trust_remote_code=True`, with which whole
    files are downloaded.

    Args:
        name_or_path: Hub id or folder of a model that sentence-transformers can load: a
            `SentenceTransformer`, `CrossEncoder`, `SparseEncoder` or `MultiVectorEncoder`, as its
            `config_sentence_transformers.json` says. A plain checkpoint of transformers is a
            `CrossEncoder` if it has a classifier, otherwise a `SentenceTransformer`. One that was
            saved with a `TruncatedTransformer` is read whole and then cut. So is a folder, or a
            repository whose weights are in the cache, if other layers than the first ones stay.
        size: `Size(3, 64)` or `"3L-64d"`, in place of numbers. Without any of these, the whole
            model is loaded, an aligned one with the readouts of all its depths.
        num_layers: Transformer layers to keep, 1..N; None for all. 0 for the token table of
            `fit_queries`, as for `truncate`; the network is not read.
        dim: Dimensions to keep, 1..D; None for all. Only a `SentenceTransformer` has some to choose from.
        layers: Which layers to keep, as for `truncate`: `"first"`, `"ends"`, `"spread"` or a list.
        route: The only route of a `Router` to read, such as `"query"` for a service that embeds
            queries with an `asymmetric` model. The result has no `Router`; its `encode` has the
            prompt of that side.
        allow_bin: If there is no safetensors file, read `pytorch_model.bin`, with
            `weights_only=True`.
        **kwargs: Arguments of the model's class: `device`, `revision`, `token`, `model_kwargs`,
            ...

    Raises:
        TypeError: A number is not an integer.
        ValueError: A number is out of range, the text is not a size, a size and numbers are given,
            `backend` is not `"torch"`, the architecture cannot be cut exactly, or the checkpoint is
            broken, lacks weights that the cut needs, or has no safetensors file or no such route.
        FileNotFoundError: There is no such folder, or the weights are not cached and the Hub cannot
            be reached.

    Warns:
        DataWarning: As for `truncate`.

    Example:
        >>> small = load(folder, "3L-64d")  # or a Hub id, "sentence-transformers/all-MiniLM-L6-v2"
        >>> small.config.num_hidden_layers
        3
    """
    depth, dim = resolve_size(size, num_layers, dim)  # compared with the model's size later
    if layers is not None:
        depth = depth_of_choice(layers, depth)
    if (backend := kwargs.get("backend", "torch")) != "torch":
        raise UsageError(
            f"Layers can be left out with backend='torch' only, got backend={backend!r}. Load the cut without it, save it, "
            f"and export that: SentenceTransformer(folder, backend={backend!r})."
        )
    checkpoint, kwargs = opened(name_or_path, kwargs)
    source = source_of(replace(checkpoint, route=route), kwargs, depth, layers, allow_bin)
    model = _read(source)
    if source.cut is not None:
        return _finished(model, source.checkpoint, source.cut, dim)
    if depth is not None or dim is not None:  # all weights were read
        return truncate(model, num_layers=depth, dim=dim, layers=layers)
    watch(model)
    return model


def _read(source: Source) -> Any:
    """Build the model that is read, with the readouts of its depth, or of all depths if it has all layers."""
    checkpoint, cut = source.checkpoint, source.cut
    if cut is not None and cut.num_layers == 0:
        return load_table(checkpoint, source.kwargs)
    if cut is not None:
        model = _some_layers(source, cut)
    else:
        model = _all_weights(checkpoint, source.kwargs)
        cut = Cut.of(model.config, full_size(model).num_layers)
        require_declared(checkpoint, cut.declaration)
    add_readouts(model, checkpoint, cut)
    return model


def _all_weights(checkpoint: Checkpoint, kwargs: dict[str, Any]) -> Any:
    """Load a model of any kind; what an adapter declares is read from its own config."""
    configs = {folder: read_config(checkpoint, folder, kwargs) for folder in checkpoint.transformer_folders}
    check_weights(checkpoint, configs, kwargs)
    model = _assembled(checkpoint, kwargs)
    for transformer in transformers_of(model):
        declare_from_adapters(transformer.model)
    return model


def _some_layers(source: Source, cut: Cut) -> Any:
    """Load the layers of a cut, and check that they equal those of the whole."""
    checkpoint, read = source.checkpoint, source.read
    kwargs = {**source.kwargs, "config_kwargs": {**(source.kwargs.get("config_kwargs") or {}), **cut.changed}}
    config = cut.config if source.piece else cut.whole
    check_weights(read, dict.fromkeys(read.transformer_folders, config), kwargs, cut)
    revision = kwargs.pop("revision", None) if source.piece else None
    model = _assembled(read, kwargs)
    network = Pipeline.of(model, BaseModel).transformer.model
    if source.piece:
        model.model_card_data.set_base_model(checkpoint.name, revision=revision)
        network.name_or_path = network.config.name_or_path = model.tokenizer.name_or_path = checkpoint.name
    check_loaded(network, cut.whole, cut.layers)
    return model


def _finished(model: Any, checkpoint: Checkpoint, cut: Cut, dim: int | None) -> Any:
    """Leave dims out, write what the model was cut from, name it, and warn of a size that it was not trained for."""
    full = Size(cut.layers.total, full_size(model).dim)
    narrow(model, full, dim, cut.declaration, cut.kept, checkpoint.name if checkpoint.commit else None)
    if (size := full_size(model)) != full:
        replace_card(model)  # it describes the whole model; saving writes a new card
        name_apart(model, model, kind_of(model).told(size))
    warn_if_untrained(cut.declaration, size, full)
    watch(model)
    return model


def _assembled(checkpoint: Checkpoint, kwargs: dict[str, Any]) -> Any:
    """Build the pipeline, and refuse one that lacks weights."""
    try:
        # The report would list every layer that is left out. Weights that the embeddings need are
        # checked without it.
        with one_load_at_a_time, quiet_loading():
            model = load_with_classes(checkpoint.kind.cls, checkpoint.name, {**_OURS, **_router(checkpoint)}, **kwargs)
    except RuntimeError as error:  # of a device, or of weights
        if str(error).startswith(("Error(s) in loading state_dict", "You set `ignore_mismatched_sizes`")):
            raise UsageError(f"The weights of {checkpoint.name} do not fit its modules. {error}") from error
        raise
    except Exception:
        check_files(checkpoint)  # names the broken file, which a library's error seldom does
        raise
    files = [path for folder in checkpoint.transformer_folders if (path := checkpoint.weights_in(folder))]
    own_tables(model, kwargs)
    for transformer in transformers_of(model):
        settled(transformer.processor)
    check_complete(model, f"{' and '.join(files) or 'The checkpoint'} of {checkpoint.name}")
    return model if checkpoint.route is None else _side(model, checkpoint.route)


def _router(checkpoint: Checkpoint) -> dict[str, type[Router]]:
    """Return the class that reads a single route, by the name that `modules.json` has for a `Router`."""
    return {} if checkpoint.route is None else {checkpoint.modules[0][0]: _only(checkpoint.route)}


def _side(model: Any, route: str) -> Any:
    """Return a loaded route as a model without a `Router`, with a name and a card of its own."""
    side = side_of(model, route)
    name_apart(side, model, route)
    return side


def _only(route: str) -> type[Router]:
    """Return a `Router` class whose `load` reads the modules of one route."""

    class OnlyRoute(Router):
        @classmethod
        def load_config(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
            config = super().load_config(*args, **kwargs)
            modules = config["structure"][route]
            types = {name: kind for name, kind in config["types"].items() if name in modules}
            return {**config, "types": types, "structure": {route: modules}, "parameters": {"default_route": route}}

    return OnlyRoute
