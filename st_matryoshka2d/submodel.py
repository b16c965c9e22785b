"""Cutting a model to a size: the result is a plain `SentenceTransformer`."""

from __future__ import annotations

import copy
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.util import ORIGINAL_TRANSFORMER_MODELS, load_file_path
from torch import nn
from transformers import AutoConfig

from st_matryoshka2d.backbone import cut_config, share_memory
from st_matryoshka2d.dims import declare_dims, declared_dims
from st_matryoshka2d.elastic import TruncatedTransformer, cut_transformer
from st_matryoshka2d.exactness import check_loaded
from st_matryoshka2d.layers import routes_of, transformer_of
from st_matryoshka2d.sizes import full_size, positive_int, within

__all__ = ["load", "pipeline_at_depth", "truncate"]

# How `modules.json` calls sentence-transformers' own Transformer, today and before version 6.
_PLAIN_TRANSFORMERS = (
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.models.Transformer",
)

Pipeline = TypeVar("Pipeline", bound=SentenceTransformer)


def truncate(model: SentenceTransformer, num_layers: int | None = None, dim: int | None = None) -> SentenceTransformer:
    """Cut a model to a size.

    The cut is a plain `SentenceTransformer`: save it with `save_pretrained` or `push_to_hub`, and it loads anywhere without
    this package. Cutting changes nothing in the full model. The two share their weights' memory, so training one of them
    trains the other; moving or casting one does not. For a cut that stays as it is, take `copy.deepcopy` of it or `load` it.
    Embeddings of a smaller `dim` are the first coordinates of the full ones, not normalised again.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`, or with a `Router` over several of one depth.
        num_layers: Transformer layers to keep, 1..N; None for all.
        dim: Dimensions to keep, 1..D; None for all.

    Raises:
        TypeError: `model` is not a `SentenceTransformer`, or a number is not an integer.
        ValueError: Neither number is given, one is out of range, or the architecture cannot be cut exactly.

    Example:
        >>> small = truncate(model, num_layers=3, dim=64)
        >>> small.encode(["a text", "another"]).shape
        (2, 64)
        >>> small.save_pretrained("small")
    """
    routes_of(model)
    _require_one(num_layers, dim)
    full = full_size(model)
    depth = full.num_layers if num_layers is None else within(num_layers, full.num_layers, "num_layers")
    if dim is not None:
        within(dim, full.dim, "dim")
    cut = pipeline_at_depth(model, depth, SentenceTransformer)
    cut.truncate_dim = model.truncate_dim
    return _narrow(cut, dim)


def load(
    name_or_path: str | os.PathLike[str], num_layers: int | None = None, dim: int | None = None, **kwargs: Any
) -> SentenceTransformer:
    """Load a model cut to a size, without reading the weights of the layers above.

    Args:
        name_or_path: Hub id or folder of a model that sentence-transformers can load. One that was saved with a
            `TruncatedTransformer` is read whole and then cut.
        num_layers: Transformer layers to keep, 1..N; None for all.
        dim: Dimensions to keep, 1..D; None for all.
        **kwargs: Keywords of `SentenceTransformer`: `device`, `revision`, `token`, `model_kwargs`, ...

    Raises:
        TypeError: A number is not an integer.
        ValueError: Neither number is given, one is out of range, or the architecture cannot be cut exactly.
        FileNotFoundError: A path to no folder.

    Example:
        >>> small = load(folder, num_layers=3, dim=64)  # or a Hub id, "sentence-transformers/all-MiniLM-L6-v2"
        >>> small.config.num_hidden_layers
        3
    """
    _require_one(num_layers, dim)
    name_or_path = _resolved(name_or_path)
    hub = {name: kwargs[name] for name in ("token", "revision", "local_files_only") if name in kwargs}
    first = _first_module(name_or_path, cache_folder=kwargs.get("cache_folder"), **hub)
    if first["type"] not in _PLAIN_TRANSFORMERS:
        return truncate(SentenceTransformer(name_or_path, **kwargs), num_layers, dim)
    config_kwargs = dict(kwargs.pop("config_kwargs", None) or {})
    full_config = AutoConfig.from_pretrained(
        name_or_path,
        subfolder=first["path"],
        cache_dir=kwargs.get("cache_folder"),
        trust_remote_code=kwargs.get("trust_remote_code", False),
        **hub,
        **config_kwargs,
    )
    depth = getattr(full_config, "num_hidden_layers", None)
    if depth is None:
        raise ValueError(
            f"{name_or_path}: {type(full_config).__name__} has no `num_hidden_layers`, so it has no depth to choose."
        )
    keep = depth if num_layers is None else within(num_layers, depth, "num_layers")
    if dim is not None:
        positive_int(dim, "dim")  # how wide the model is shows only when the modules after the Transformer are there
    cut = cut_config(full_config, keep)
    overrides = {name: value for name, value in vars(cut).items() if vars(full_config).get(name) != value}
    with _upper_layers_unmentioned():
        model = SentenceTransformer(name_or_path, config_kwargs={**config_kwargs, **overrides}, **kwargs)
    check_loaded(transformer_of(model).model, full_config)
    return _narrow(model, dim)


def pipeline_at_depth(model: SentenceTransformer, num_layers: int, cls: type[Pipeline]) -> Pipeline:
    """The pipeline over fewer layers, as a plain `SentenceTransformer` or a subclass, in the same memory.

    Args:
        model: The full pipeline.
        num_layers: Layers to keep.
        cls: What to make.
    """
    (name, first), *head = model.named_children()
    start = _first_at_depth(first, num_layers)
    modules: Any = OrderedDict([(name, start), *((path, share_memory(module)) for path, module in head)])
    prompts: Any = dict(model.prompts)
    cut = cls(
        modules=modules,
        device=str(model.device),
        prompts=prompts,
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
    )
    cut.module_kwargs = model.module_kwargs
    return cut.train(model.training)


def _first_at_depth(first: Any, num_layers: int) -> nn.Module:
    if isinstance(first, TruncatedTransformer):
        return first.to_transformer(num_layers)
    if not isinstance(first, Router):
        return cut_transformer(first, num_layers)
    cuts: dict[nn.Module, nn.Module] = {}  # a Transformer that routes share stays shared
    routes = nn.ModuleDict()
    for name, way in first.sub_modules.items():
        start, *rest = list[nn.Module](way.children())
        if start not in cuts:
            cuts[start] = _first_at_depth(start, num_layers)
        routes[name] = nn.Sequential(cuts[start], *(share_memory(module) for module in rest))
    router = copy.copy(first)
    router._modules = {"sub_modules": routes}
    return router


def _require_one(num_layers: int | None, dim: int | None) -> None:
    if num_layers is None and dim is None:
        raise ValueError("Give num_layers, dim or both; neither was given, so there is nothing to cut.")


def _narrow(model: SentenceTransformer, dim: int | None) -> SentenceTransformer:
    """Set the width in place, and tell servers (in the config) the dims that the model may be asked for."""
    full = full_size(model).dim
    kept = full if dim is None else within(dim, full, "dim")
    if dim is not None:
        model.truncate_dim = kept
    declare_dims(model.config, [*(trained for trained in declared_dims(model.config) if trained < kept), kept])
    return model


def _resolved(name_or_path: str | os.PathLike[str]) -> str:
    """A folder, or a Hub id in full: sentence-transformers lets its own organisation be left out."""
    name = os.fspath(name_or_path)
    if Path(name).exists():
        return name
    if name.startswith((".", "~")) or Path(name).is_absolute():
        raise FileNotFoundError(f"There is no folder {name}.")
    return name if "/" in name or name in ORIGINAL_TRANSFORMER_MODELS else f"sentence-transformers/{name}"


def _first_module(name_or_path: str, **files: Any) -> dict[str, str]:
    """Entry of the first module in `modules.json`; a plain Hugging Face checkpoint is a Transformer in the root."""
    path = load_file_path(name_or_path, "modules.json", **files)
    if path is None:
        return {"type": _PLAIN_TRANSFORMERS[0], "path": ""}
    first: dict[str, str] = json.loads(Path(path).read_text(encoding="utf-8"))[0]
    return first


@contextmanager
def _upper_layers_unmentioned() -> Iterator[None]:
    """Transformers lists each weight it leaves in the file; here that is meant. Missing weights are still reported."""

    def worth_telling(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return "LOAD REPORT" not in message or "MISSING" in message or "MISMATCH" in message

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(worth_telling)
    try:
        yield
    finally:
        logger.removeFilter(worth_telling)
