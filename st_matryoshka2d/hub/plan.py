"""Choose what is read of a checkpoint: all weights, some layers in place, or a piece that is downloaded or copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from st_matryoshka2d.errors import warn
from st_matryoshka2d.files.safetensors_header import WholeFileNeededError
from st_matryoshka2d.hub.checkpoint import Checkpoint, is_pickle
from st_matryoshka2d.hub.partial import copy_piece, fetch_piece
from st_matryoshka2d.hub.reach import within_reach
from st_matryoshka2d.hub.weights import brings_other_weights, check_bases, read_config, without_pickles
from st_matryoshka2d.hub.weights_fit import depth_of
from st_matryoshka2d.model.cut_config import Cut, packs_layers
from st_matryoshka2d.model.layers import of_depth
from st_matryoshka2d.sizes import within


@dataclass(frozen=True)
class Plan:
    """What is read: some layers of a checkpoint, or a piece of it with these; without a cut, all weights."""

    checkpoint: Checkpoint
    kwargs: dict[str, Any]
    cut: Cut | None = None
    piece: Path | None = None
    is_copy: bool = False  # the piece is a copy, so errors name the checkpoint


def planned(
    checkpoint: Checkpoint,
    kwargs: dict[str, Any],
    num_layers: int | None,
    layers: str | Sequence[int] | None,
    allow_bin: bool,
    spare: Path,
) -> Plan:
    """Check the files, download or copy a piece if that is enough, and choose what is read."""
    is_divisible = checkpoint.is_plain and not (brings_other_weights(kwargs) or kwargs.get("trust_remote_code"))
    cut, piece = None, None
    config_is_here = (checkpoint.root / checkpoint.within_transformer("config.json")).is_file()
    if num_layers and is_divisible and checkpoint.commit and config_is_here:
        cut = _wanted(checkpoint, kwargs, num_layers, layers)
        piece = checkpoint.piece_folder(cut.kept) if checkpoint.piece_folder(cut.kept).is_dir() else None
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
    cut = cut or _wanted(checkpoint, kwargs, num_layers, layers)
    if piece is None and is_divisible and checkpoint.commit and not cut.is_whole:
        piece = _fetched(checkpoint, cut, allow_bin)
    in_place = cut.is_whole or (cut.kept == list(range(cut.num_layers)) and not packs_layers(cut.whole))
    if piece or in_place:
        return Plan(checkpoint, kwargs, cut, piece)
    # transformers reads neither layers that move up nor the part of a tensor
    if is_divisible and _copied(checkpoint, cut, allow_bin, spare):
        return Plan(checkpoint, kwargs, cut, spare, is_copy=True)
    return Plan(checkpoint, kwargs)


def _wanted(
    checkpoint: Checkpoint, kwargs: dict[str, Any], num_layers: int | None, layers: str | Sequence[int] | None
) -> Cut:
    """Read the config of the whole model, and decide what is kept of it."""
    config = read_config(checkpoint, checkpoint.transformer, kwargs)
    depth = depth_of(config, checkpoint.name)
    keep = depth if num_layers is None else within(num_layers, depth, "num_layers")
    return Cut.of(config, keep, None if layers is None else of_depth(layers, keep))


def _fetched(checkpoint: Checkpoint, cut: Cut, allow_bin: bool) -> Path | None:
    """Download a piece; None if whole files are needed or cached, or if offline."""
    if checkpoint.is_cached or checkpoint.is_offline or not _has_parts(checkpoint):
        return None
    try:
        return fetch_piece(checkpoint, cut, allow_bin)
    except WholeFileNeededError as reason:
        warn(f"{checkpoint.name}: the whole weights are downloaded. {reason}")
        return None


def _copied(checkpoint: Checkpoint, cut: Cut, allow_bin: bool, folder: Path) -> bool:
    """Copy a piece of local files to a folder; False if whole files are needed."""
    is_here = checkpoint.commit is None or checkpoint.is_cached
    try:
        return is_here and _has_parts(checkpoint) and copy_piece(checkpoint, cut, allow_bin, folder)
    except WholeFileNeededError:
        return False


def _has_parts(checkpoint: Checkpoint) -> bool:
    """Whether some tensors of the Transformer can be read without the others; not those of a pickle or an adapter."""
    weights = checkpoint.weights_in(checkpoint.transformer)
    return bool(weights and not is_pickle(weights) and checkpoint.transformer_folders)
