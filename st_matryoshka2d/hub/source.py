"""Choose what is read of a checkpoint: all weights, the first layers, a piece that is downloaded, or the token table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from st_matryoshka2d.errors import UsageError, warn
from st_matryoshka2d.files.safetensors_header import WholeFileNeededError
from st_matryoshka2d.hub.checkpoint import Checkpoint, is_pickle
from st_matryoshka2d.hub.piece import fetch_piece
from st_matryoshka2d.hub.reach import within_reach
from st_matryoshka2d.hub.weights import brings_other_weights, check_adapters, read_config, without_pickles
from st_matryoshka2d.hub.weights_fit import depth_of
from st_matryoshka2d.model.cut_config import Cut, packs_layers
from st_matryoshka2d.model.layers import of_depth
from st_matryoshka2d.sizes import within


@dataclass(frozen=True)
class Source:
    """What is read: the layers of a cut, from a checkpoint or from a piece of it; without a cut, all weights."""

    checkpoint: Checkpoint
    kwargs: dict[str, Any]  # of the model's class
    cut: Cut | None = None
    piece: Checkpoint | None = None

    @property
    def read(self) -> Checkpoint:
        """The checkpoint whose files are read."""
        return self.piece or self.checkpoint


def source_of(
    checkpoint: Checkpoint,
    kwargs: dict[str, Any],
    num_layers: int | None,
    layers: str | Sequence[int] | None,
    allow_bin: bool,
) -> Source:
    """Check the files, choose what is read, and download a piece if that is enough."""
    if num_layers == 0 and checkpoint.route is None and not checkpoint.is_table:
        return Source(checkpoint, without_pickles(checkpoint, allow_bin, kwargs), _of_table(checkpoint, kwargs))
    brought = brings_other_weights(kwargs)
    is_divisible = checkpoint.commit and checkpoint.is_plain and not (brought or kwargs.get("trust_remote_code"))
    config_is_here = (checkpoint.root / checkpoint.within_transformer("config.json")).is_file()
    if is_divisible and num_layers and config_is_here and checkpoint.route is None:
        cut = _wanted(checkpoint, kwargs, num_layers, layers)
        if (folder := checkpoint.piece_folder(cut.kept)).is_dir():  # the Hub need not be reached
            piece = Checkpoint(str(folder))
            return Source(checkpoint, without_pickles(piece, allow_bin, kwargs), cut, piece)
    if not brought:
        checkpoint, kwargs = within_reach(checkpoint, kwargs, num_layers)
        check_adapters(checkpoint, allow_bin, kwargs)
        kwargs = without_pickles(checkpoint, allow_bin, kwargs)
    checkpoint.check_route()
    if not checkpoint.is_plain or checkpoint.adapter_folders:  # several Transformers, or no config.json
        return Source(checkpoint, kwargs)
    cut = _wanted(checkpoint, kwargs, num_layers, layers)
    if is_divisible and not cut.is_whole and (downloaded := _fetched(checkpoint, cut, allow_bin)):
        return Source(checkpoint, kwargs, cut, Checkpoint(str(downloaded)))
    # transformers reads neither layers that move up nor the part of a tensor
    in_place = cut.is_whole or (cut.kept == list(range(cut.num_layers)) and not packs_layers(cut.whole))
    return Source(checkpoint, kwargs, cut if in_place else None)


def _of_table(checkpoint: Checkpoint, kwargs: dict[str, Any]) -> Cut:
    """Read the config of a model that has a token table; refuse one without."""
    has_dense = any(kind.endswith(".Dense") for kind, _ in checkpoint.modules)
    cut = Cut.of(read_config(checkpoint, checkpoint.transformer, kwargs), 0) if has_dense and checkpoint.is_plain else None
    if cut is None or 0 not in (cut.declaration.readouts or []):
        raise UsageError(
            f"{checkpoint.name} has no token table, which 0 layers mean. Load the whole model, give it one with "
            "`fit_queries` or the command `fit-queries`, and save it."
        )
    return cut


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
    weights = checkpoint.weights_in(checkpoint.transformer)
    if checkpoint.is_cached or checkpoint.is_offline or weights is None or is_pickle(weights):
        return None
    try:
        return fetch_piece(checkpoint, cut, allow_bin)
    except WholeFileNeededError as reason:
        warn(f"{checkpoint.name}: the whole weights are downloaded. {reason}")
        return None
