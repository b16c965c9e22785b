"""Cutting a model to a size: the result is a plain `SentenceTransformer`."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sentence_transformers import SentenceTransformer
from sentence_transformers.util import ORIGINAL_TRANSFORMER_MODELS, load_file_path
from transformers import AutoConfig

from st_matryoshka2d.backbone import cut_config, share_memory
from st_matryoshka2d.dims import declare_dims, declared_dims
from st_matryoshka2d.elastic import TruncatedTransformer, cut_transformer
from st_matryoshka2d.exactness import check_loaded
from st_matryoshka2d.layers import transformer_of
from st_matryoshka2d.sizes import Size, full_size, validate_sizes

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
    this package. It uses the full model's memory until one of the two is trained or moved; the full model is left as it is.
    Embeddings of a smaller `dim` are the first coordinates of the full ones, not normalised again.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`.
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
    transformer_of(model)
    _require_one(num_layers, dim)
    size = _requested_size(num_layers, dim, full_size(model))
    cut = pipeline_at_depth(model, size.num_layers, SentenceTransformer)
    cut.truncate_dim = model.truncate_dim if dim is None else size.dim
    _declare_cut(cut.config, size.dim)
    return cut


def load(name_or_path: str, num_layers: int | None = None, dim: int | None = None, **kwargs: Any) -> SentenceTransformer:
    """Load a model cut to a size, without reading the weights of the layers above.

    Args:
        name_or_path: Hub id or folder of a model that sentence-transformers can load.
        num_layers: Transformer layers to keep, 1..N; None for all.
        dim: Dimensions to keep, 1..D; None for all.
        **kwargs: Keywords of `SentenceTransformer`: `device`, `revision`, `token`, `model_kwargs`, ...

    Raises:
        ValueError: Neither number is given, one is out of range, or the architecture cannot be cut exactly.

    Example:
        >>> small = load(folder, num_layers=3, dim=64)  # or a Hub id, "sentence-transformers/all-MiniLM-L6-v2"
        >>> small.config.num_hidden_layers
        3
    """
    _require_one(num_layers, dim)
    if not Path(name_or_path).exists() and "/" not in name_or_path and name_or_path not in ORIGINAL_TRANSFORMER_MODELS:
        name_or_path = f"sentence-transformers/{name_or_path}"
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
    # The width is known only once the modules after the Transformer are there; until then any positive one will do.
    size = _requested_size(num_layers, dim, Size(depth, dim or 1))
    cut = cut_config(full_config, size.num_layers)
    overrides = {name: value for name, value in vars(cut).items() if vars(full_config).get(name) != value}
    with _upper_layers_unmentioned():
        model = SentenceTransformer(name_or_path, config_kwargs={**config_kwargs, **overrides}, **kwargs)
    full = full_size(model)
    _requested_size(None, dim or full.dim, full)
    check_loaded(transformer_of(model).model, full_config)
    model.truncate_dim = model.truncate_dim if dim is None else size.dim
    _declare_cut(model.config, dim or full.dim)
    return model


def pipeline_at_depth(model: SentenceTransformer, num_layers: int, cls: type[Pipeline]) -> Pipeline:
    """The pipeline over fewer layers, as a plain `SentenceTransformer` or a subclass, in the same memory.

    Args:
        model: The full pipeline.
        num_layers: Layers to keep.
        cls: What to make.
    """
    first = transformer_of(model)
    plain = (
        first.to_transformer(num_layers) if isinstance(first, TruncatedTransformer) else cut_transformer(first, num_layers)
    )
    (name, _), *head = model.named_children()
    modules: Any = OrderedDict([(name, plain), *((path, share_memory(module)) for path, module in head)])
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


def _require_one(num_layers: int | None, dim: int | None) -> None:
    if num_layers is None and dim is None:
        raise ValueError("Give num_layers, dim or both; neither was given, so there is nothing to cut.")


def _requested_size(num_layers: int | None, dim: int | None, full: Size) -> Size:
    wanted = Size(full.num_layers if num_layers is None else num_layers, full.dim if dim is None else dim)
    return validate_sizes([wanted], full, where="the size asked for")[0]


def _first_module(name_or_path: str, **files: Any) -> dict[str, str]:
    """Entry of the first module in `modules.json`; a plain Hugging Face checkpoint is a Transformer in the root."""
    path = load_file_path(name_or_path, "modules.json", **files)
    if path is None:
        return {"type": _PLAIN_TRANSFORMERS[0], "path": ""}
    first: dict[str, str] = json.loads(Path(path).read_text(encoding="utf-8"))[0]
    return first


def _declare_cut(config: Any, dim: int) -> None:
    declare_dims(config, [*(trained for trained in declared_dims(config) if trained < dim), dim])


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
