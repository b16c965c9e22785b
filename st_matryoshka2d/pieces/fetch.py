"""From a repository on the Hub, a folder with a checkpoint of its first n blocks and nothing above them."""

from __future__ import annotations

import glob
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]  # exported on first use, which mypy does not see
from transformers import AutoConfig

from st_matryoshka2d.backbone import cut_config
from st_matryoshka2d.pieces.blocks import blank_model, block_lists, names_above
from st_matryoshka2d.pieces.checkpoint import WEIGHTS, Checkpoint
from st_matryoshka2d.pieces.header import header_of, written_header
from st_matryoshka2d.pieces.plan import Plan, plan_piece
from st_matryoshka2d.pieces.safe_files import small_files
from st_matryoshka2d.pieces.shapes import check_depth, check_shapes
from st_matryoshka2d.pieces.whole_files import shapes_in_pickle
from st_matryoshka2d.pieces.whole_folder import made_once

__all__ = ["fetch_piece", "piece_folder", "pieces_of"]


def piece_folder(checkpoint: Checkpoint, num_layers: int) -> Path:
    """Where the piece of so many layers is kept: in the Hub client's cache, with the rest of the repository.

    Args:
        checkpoint: A checkpoint on the Hub.
        num_layers: Blocks that the piece has.
    """
    return checkpoint.cache / "st_matryoshka2d" / str(checkpoint.commit) / f"{num_layers}-layers"


def pieces_of(checkpoint: Checkpoint) -> list[int]:
    """How many layers the pieces have that are kept of a checkpoint, ascending.

    Args:
        checkpoint: A checkpoint on the Hub.
    """
    beside = piece_folder(checkpoint, 1).parent.glob("[1-9]*-layers")
    return sorted(int(folder.name.removesuffix("-layers")) for folder in beside)


def fetch_piece(checkpoint: Checkpoint, num_layers: int, allow_bin: bool = False) -> Path | None:
    """Fetch the weights of the first blocks, and of everything that is no block, into a folder that loads by itself.

    Args:
        checkpoint: A checkpoint on the Hub.
        num_layers: Blocks to keep, fewer than there are.
        allow_bin: Whether the modules after the Transformer may have a `pytorch_model.bin`.

    Returns:
        The folder; None for a model that has no blocks of their own to leave out.

    Raises:
        NamesUnknownError: It cannot be told which tensors are needed.
        RangesRefusedError: The server gives whole files only.
        ValueError: The checkpoint is broken, or the server answers something else than it was asked.
    """
    config_path = checkpoint.download("config.json")
    config = AutoConfig.from_pretrained(config_path.parent)
    lists: list[str] = []

    def above(names: Iterable[str]) -> set[str] | None:
        known = list(names)
        check_depth(config, len(known), checkpoint.name)
        lists.extend(block_lists(blank_model(config)))
        return names_above(known, lists, config.num_hidden_layers, num_layers) if lists else set()

    plan = plan_piece(checkpoint, above)
    if not lists:
        return None
    check_shapes({tensor.name: tensor.shape for tensor in plan.tensors}, cut_config(config, num_layers), checkpoint.name)
    folder = piece_folder(checkpoint, num_layers)
    with made_once(folder) as unfinished:
        if unfinished is not None:
            _copy_small_files(checkpoint, allow_bin, unfinished)
            home = unfinished / checkpoint.transformer
            (home / "config.json").write_text(_config_of_piece(config_path, config, num_layers), encoding="utf-8")
            _fetch_tensors(plan, home / WEIGHTS)
    return folder


def _fetch_tensors(plan: Plan, path: Path) -> None:
    total = sum(tensor.stop - tensor.start for tensor in plan.tensors)
    bar = tqdm(total=total, unit="B", unit_scale=True, desc=path.name)  # type: ignore[no-untyped-call]
    with path.open("wb") as out, bar:
        out.write(written_header(plan.tensors, plan.metadata))

        def write(part: bytes) -> None:
            out.write(part)
            bar.update(len(part))

        for file, start, stop in plan.ranges():
            file.copy(start, stop, write)


def _config_of_piece(path: Path, config: Any, num_layers: int) -> str:
    """The repository's own config.json with the depth of the piece, so that the folder is right by itself."""
    cut = cut_config(config, num_layers)
    changed = {name: value for name, value in vars(cut).items() if vars(config).get(name) != value}
    other_names = {name: own for name, own in config.attribute_map.items() if own in changed}
    written = json.loads(path.read_text(encoding="utf-8"))
    changed |= {name: changed[own] for name, own in other_names.items() if name in written}
    return json.dumps(written | changed, indent=2)


def _copy_small_files(checkpoint: Checkpoint, allow_bin: bool, target: Path) -> None:
    names = small_files(checkpoint, allow_bin)
    snapshot = snapshot_download(
        checkpoint.name,
        revision=checkpoint.commit,
        cache_dir=checkpoint.cache_folder,
        token=checkpoint.token,
        allow_patterns=[glob.escape(name) for name in names],
    )
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(snapshot) / name, target / name)
        if name.endswith(".safetensors"):
            header_of(target / name, name)
        elif name.endswith(".bin"):
            shapes_in_pickle(target / name)
