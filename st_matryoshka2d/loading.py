"""Loading a cut: of the weights, only what the cut needs is read, and only that is fetched from the Hub."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from st_matryoshka2d.assembly import assembled, check_weights, read_config
from st_matryoshka2d.backbone import cut_config
from st_matryoshka2d.config_metadata import warn_if_untrained
from st_matryoshka2d.cut import cut_to, narrow
from st_matryoshka2d.hub.checkpoint import PLAIN_TRANSFORMERS, Checkpoint, opened, piece_folder, within_reach
from st_matryoshka2d.hub.partial_download import NamesUnknownError, fetch_piece
from st_matryoshka2d.hub.readouts import add_readouts, replace_module
from st_matryoshka2d.hub.remote_file import RangesRefusedError
from st_matryoshka2d.hub.shapes import depth_of
from st_matryoshka2d.hub.weights import require_safetensors, transformer_folders
from st_matryoshka2d.identity import name_apart
from st_matryoshka2d.layers import routes_of, transformer_of
from st_matryoshka2d.model_card.inherited import replace_card
from st_matryoshka2d.readout import Readout, expect_readouts, require_readouts
from st_matryoshka2d.sizes import Size, full_size, resolve_size, within
from st_matryoshka2d.verify import check_loaded

__all__ = ["load", "read_readouts"]

# Keywords of `from_pretrained` by which the weights come from elsewhere than the checkpoint's own safetensors files.
_OTHER_WEIGHTS = {"gguf_file", "state_dict", "subfolder", "variant"}


def load(
    name_or_path: str | os.PathLike[str],
    size: Size | str | int | None = None,
    dim: int | None = None,
    *,
    num_layers: int | None = None,
    allow_bin: bool = False,
    **kwargs: Any,
) -> SentenceTransformer:
    """Load a model cut to a size, without the weights of the layers above: they are neither fetched nor read.

    From the Hub comes a piece of the checkpoint, which is kept in the Hub's cache for the next time. This requires
    safetensors weights. No code of the repository is run (unless `trust_remote_code=True`, with which whole files are
    fetched), and nothing is unpickled. A size that the model was not trained at is warned of, as by `truncate`.

    Args:
        name_or_path: Hub id or folder of a model that sentence-transformers can load. One that was saved with a
            `TruncatedTransformer` is read whole and then cut.
        size: `Size(3, 64)` or `"3L-64d"`. An integer is a number of layers: `load(folder, 3, 64)`. None loads the whole
            model, an aligned one with the readouts of all its depths.
        dim: Dimensions to keep, 1..D; None for all.
        num_layers: Transformer layers to keep, 1..N; None for all.
        allow_bin: Where there is no safetensors file, read `pytorch_model.bin`, with `weights_only=True`.
        **kwargs: Keywords of `SentenceTransformer`: `device`, `revision`, `token`, `model_kwargs`, ...

    Raises:
        TypeError: A number is not an integer.
        ValueError: A number is out of range, the text is not a size, a size and numbers are given, the architecture cannot
            be cut exactly, or the checkpoint is broken, lacks weights that the cut needs, or has no safetensors file.
        FileNotFoundError: There is no such folder, or weights that are not in the cache while the Hub cannot be reached.

    Example:
        >>> small = load(folder, "3L-64d")  # or a Hub id, "sentence-transformers/all-MiniLM-L6-v2"
        >>> small.config.num_hidden_layers
        3
    """
    layers, dim = resolve_size(size, num_layers, dim)  # how large the model is shows only later
    checkpoint, kwargs = opened(name_or_path, kwargs)
    piece = None if layers is None or _is_special(checkpoint, kwargs) else piece_folder(checkpoint, layers)
    if piece and piece.is_dir():
        kwargs = _without_pickles(Checkpoint(str(piece)), allow_bin, kwargs)
    elif not _brings_other_weights(kwargs):
        checkpoint, kwargs = within_reach(checkpoint, kwargs, layers)
        kwargs = _without_pickles(checkpoint, allow_bin, kwargs)
    if checkpoint.modules[0][0] not in PLAIN_TRANSFORMERS:
        small, whole = _cut_whole(checkpoint, layers, dim, kwargs)
        warn_if_untrained(whole.config, full_size(small), full_size(whole))
        return small
    full_config = read_config(checkpoint, checkpoint.transformer, kwargs)
    depth = depth_of(full_config, checkpoint.name)
    keep = depth if layers is None else within(layers, depth, "num_layers")
    if piece and not piece.is_dir():
        piece = _fetched(checkpoint, keep, allow_bin) if keep < depth else None
    cut = cut_config(full_config, keep)
    overrides = {name: value for name, value in vars(cut).items() if vars(full_config).get(name) != value}
    kwargs["config_kwargs"] = {**(kwargs.get("config_kwargs") or {}), **overrides}
    if not _brings_other_weights(kwargs):
        source, config = (Checkpoint(str(piece)), cut) if piece else (checkpoint, full_config)
        check_weights(
            source, dict.fromkeys(transformer_folders(source), config), keep, bool(kwargs.get("trust_remote_code"))
        )
    with _upper_layers_unmentioned():
        model = _pipeline(checkpoint, piece, kwargs)
    check_loaded(transformer_of(model).model, full_config)
    read_readouts(model, checkpoint, full_config, keep)
    full = Size(depth, full_size(model).dim)
    narrow(model, dim, full_config, checkpoint.name if checkpoint.commit else None)
    warn_if_untrained(full_config, full_size(model), full)
    if full_size(model) != full:
        replace_card(model)  # what was read tells of the whole model; saving writes a new card
        name_apart(model, model, full_size(model))
    return model


def _cut_whole(
    checkpoint: Checkpoint, num_layers: int | None, dim: int | None, kwargs: dict[str, Any]
) -> tuple[SentenceTransformer, SentenceTransformer]:
    """Load all of a model that does not start with a plain Transformer, and cut it; return both."""
    configs = {folder: read_config(checkpoint, folder, kwargs) for folder in transformer_folders(checkpoint)}
    if not _brings_other_weights(kwargs):
        check_weights(checkpoint, configs, None, bool(kwargs.get("trust_remote_code")))
    whole = assembled(checkpoint, **kwargs)
    read_readouts(whole, checkpoint, whole.config, full_size(whole).num_layers)
    if num_layers is None and dim is None:
        return whole, whole
    small = cut_to(whole, num_layers, dim)
    size = full_size(small)
    if size != full_size(whole):
        name_apart(small, whole, size)
    return small, whole


def read_readouts(model: SentenceTransformer, checkpoint: Checkpoint, full_config: Any, num_layers: int) -> None:
    """Add the readout of its depth to a loaded aligned model, or those of all depths if it has all layers."""
    depths = getattr(full_config, "matryoshka_readouts", None) or []
    if not depths:
        require_readouts(model, full_config, [num_layers])
    elif num_layers == full_config.num_hidden_layers:
        add_readouts(model, checkpoint, depths)
        for route in routes_of(model).values():
            expect_readouts(route.transformer, True)
    elif num_layers in depths:
        add_readouts(model, checkpoint, [num_layers])
        readout = next(module for module in model.modules() if isinstance(module, Readout))
        replace_module(model, readout, readout.cut(num_layers).plain())
    else:
        require_readouts(model, full_config, [num_layers])


def _is_special(checkpoint: Checkpoint, kwargs: dict[str, Any]) -> bool:
    """Whether the model is anything else than the safetensors files of a repository on the Hub."""
    return (
        checkpoint.commit is None
        or checkpoint.modules[0][0] not in PLAIN_TRANSFORMERS
        or bool(kwargs.get("trust_remote_code"))
        or _brings_other_weights(kwargs)
    )


def _brings_other_weights(kwargs: dict[str, Any]) -> bool:
    return kwargs.get("backend", "torch") != "torch" or bool(_OTHER_WEIGHTS & set(kwargs.get("model_kwargs") or {}))


def _without_pickles(checkpoint: Checkpoint, allow_bin: bool, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords with one more, so that transformers unpickles nothing, or tensors alone with `allow_bin`."""
    require_safetensors(checkpoint, allow_bin)
    safely = {"weights_only": True} if allow_bin else {"use_safetensors": True}
    return {**kwargs, "model_kwargs": {**(kwargs.get("model_kwargs") or {}), **safely}}


def _fetched(checkpoint: Checkpoint, num_layers: int, allow_bin: bool) -> Path | None:
    """Fetch a piece; None where whole files are needed or cached, or there is no network."""
    if checkpoint.is_cached or checkpoint.is_offline or not checkpoint.has_plain_weights:
        return None
    try:
        return fetch_piece(checkpoint, num_layers, allow_bin)
    except (NamesUnknownError, RangesRefusedError) as reason:
        warnings.warn(f"{checkpoint.name}: the whole weights are downloaded. {reason}", stacklevel=3)
        return None


def _pipeline(checkpoint: Checkpoint, piece: Path | None, kwargs: dict[str, Any]) -> SentenceTransformer:
    """Build the pipeline from the checkpoint or its piece, named after the checkpoint either way."""
    if piece is None:
        return assembled(checkpoint, **kwargs)
    revision = kwargs.pop("revision")
    model = assembled(Checkpoint(str(piece)), **kwargs)
    model.model_card_data.set_base_model(checkpoint.name, revision=revision)
    network = transformer_of(model).model
    network.name_or_path = network.config.name_or_path = model.tokenizer.name_or_path = checkpoint.name
    return model


@contextmanager
def _upper_layers_unmentioned() -> Iterator[None]:
    """Silence transformers' report of weights it leaves in the file; missing ones are still reported."""

    def worth_telling(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return "LOAD REPORT" not in message or "MISSING" in message or "MISMATCH" in message

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(worth_telling)
    try:
        yield
    finally:
        logger.removeFilter(worth_telling)
