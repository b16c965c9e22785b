"""Choose what is read of a checkpoint: all weights, some layers in place, or a piece that is downloaded or copied."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from st_matryoshka2d.errors import warn
from st_matryoshka2d.hub.checkpoint import Checkpoint, is_pickle
from st_matryoshka2d.hub.partial import copy_piece, fetch_piece
from st_matryoshka2d.hub.reach import within_reach
from st_matryoshka2d.hub.safetensors_header import WholeFileNeededError
from st_matryoshka2d.hub.weights import brings_other_weights, check_bases, read_config, without_pickles
from st_matryoshka2d.hub.weights_fit import depth_of
from st_matryoshka2d.model.kept_layers import choose_layers, kept_layers, of_depth, packs_layers
from st_matryoshka2d.sizes import within


@dataclass(frozen=True)
class Plan:
    """What is read: some layers of a checkpoint, or a piece of it with these; without a config, all weights."""

    checkpoint: Checkpoint
    kwargs: dict[str, Any]
    config: Any = None  # of the whole model
    num_layers: int = 0
    piece: Path | None = None
    is_copy: bool = False  # the piece is a copy, so errors name the checkpoint


def planned(checkpoint: Checkpoint, kwargs: dict[str, Any], num_layers: int | None, allow_bin: bool, spare: Path) -> Plan:
    """Check the files, download or copy a piece if that is enough, and choose what is read."""
    is_divisible = checkpoint.is_plain and not (brings_other_weights(kwargs) or kwargs.get("trust_remote_code"))
    piece = _cached_piece(checkpoint, kwargs, num_layers) if num_layers and is_divisible and checkpoint.commit else None
    if piece:
        kwargs = without_pickles(Checkpoint(str(piece)), allow_bin, kwargs)
    elif not brings_other_weights(kwargs):
        checkpoint, kwargs = within_reach(checkpoint, kwargs, num_layers)
        check_bases(checkpoint, allow_bin, kwargs)
        kwargs = without_pickles(checkpoint, allow_bin, kwargs)
        if checkpoint.adapter_folders:  # which have no config.json
            return Plan(checkpoint, kwargs)
    checkpoint.check_route()
    if not checkpoint.is_plain:  # a Router may have several
        return Plan(checkpoint, kwargs)
    config, keep = _chosen(checkpoint, kwargs, num_layers)
    if keep == config.num_hidden_layers:
        return Plan(checkpoint, kwargs, config, keep)
    if piece is None and is_divisible and checkpoint.commit:
        piece = _fetched(checkpoint, config, keep, allow_bin)
    # transformers reads neither layers that move up nor the part of a tensor
    if piece is None and (kept_layers(config, keep) != list(range(keep)) or packs_layers(config)):
        if is_divisible and _copied(checkpoint, config, keep, allow_bin, spare):
            return Plan(checkpoint, kwargs, config, keep, spare, is_copy=True)
        return Plan(checkpoint, kwargs)
    return Plan(checkpoint, kwargs, config, keep, piece)


def _chosen(checkpoint: Checkpoint, kwargs: dict[str, Any], num_layers: int | None) -> tuple[Any, int]:
    """Read the config of the whole model, with the layers that the caller chose, and the number of layers to keep."""
    config = read_config(checkpoint, checkpoint.transformer, kwargs)
    depth = depth_of(config, checkpoint.name)
    keep = depth if num_layers is None else within(num_layers, depth, "num_layers")
    if checkpoint.layers is not None:
        choose_layers(config, of_depth(checkpoint.layers, keep), [keep])
    return config, keep


def _cached_piece(checkpoint: Checkpoint, kwargs: dict[str, Any], num_layers: int) -> Path | None:
    """Return the piece of a depth in the cache; None if it was not downloaded, as if the config was not."""
    if not (checkpoint.root / checkpoint.within_transformer("config.json")).is_file():
        return None
    config, keep = _chosen(checkpoint, kwargs, num_layers)
    piece = checkpoint.piece_folder(kept_layers(config, keep))
    return piece if piece.is_dir() else None


def _fetched(checkpoint: Checkpoint, config: Any, num_layers: int, allow_bin: bool) -> Path | None:
    """Download a piece; None if whole files are needed or cached, or if offline."""
    if checkpoint.is_cached or checkpoint.is_offline or not _has_parts(checkpoint):
        return None
    try:
        return fetch_piece(checkpoint, config, num_layers, allow_bin)
    except WholeFileNeededError as reason:
        warn(f"{checkpoint.name}: the whole weights are downloaded. {reason}")
        return None


def _copied(checkpoint: Checkpoint, config: Any, num_layers: int, allow_bin: bool, folder: Path) -> bool:
    """Copy a piece of local files to a folder; False if whole files are needed."""
    is_here = checkpoint.commit is None or checkpoint.is_cached
    try:
        return is_here and _has_parts(checkpoint) and copy_piece(checkpoint, config, num_layers, allow_bin, folder)
    except WholeFileNeededError:
        return False


def _has_parts(checkpoint: Checkpoint) -> bool:
    """Whether some tensors of the Transformer can be read without the others; not those of a pickle or an adapter."""
    weights = checkpoint.weights_in(checkpoint.transformer)
    return bool(weights and not is_pickle(weights) and checkpoint.transformer_folders)
