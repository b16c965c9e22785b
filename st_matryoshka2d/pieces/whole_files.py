"""Weights that are read whole: looked at before a model is built of them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path, PurePosixPath

import torch

from st_matryoshka2d.pieces.checkpoint import INDEX, PLAIN_TRANSFORMERS, WEIGHTS, Checkpoint
from st_matryoshka2d.pieces.header import header_of
from st_matryoshka2d.pieces.shards import parse_index

__all__ = ["check_broken", "check_pickles", "shapes_in_pickle", "stored_shapes", "transformer_folders", "weights_in"]

_BIN, _BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_ADAPTER = "adapter_config.json"


def transformer_folders(checkpoint: Checkpoint) -> list[str]:
    """Where the Transformers of a pipeline are: one, or those of a Router; none of an adapter to another model.

    Args:
        checkpoint: A checkpoint.
    """
    folders = [checkpoint.transformer]
    if checkpoint.modules[0][0] not in PLAIN_TRANSFORMERS:
        configs = [PurePosixPath(path) for path in checkpoint.files if PurePosixPath(path).name == "config.json"]
        folders = ["" if path.parent.name == "" else path.parent.as_posix() for path in configs]
        folders = [folder for folder in folders if _is_transformer(checkpoint, folder)]
    return [folder for folder in folders if _in(folder, _ADAPTER) not in checkpoint.files]


def weights_in(checkpoint: Checkpoint, folder: str) -> str | None:
    """The file of weights that is read, or the index of several; None where there is none under a usual name.

    Args:
        checkpoint: A checkpoint.
        folder: One of `transformer_folders`.
    """
    paths = [_in(folder, file) for file in (WEIGHTS, INDEX, _BIN, _BIN_INDEX)]
    return next((path for path in paths if path in checkpoint.files), None)


def stored_shapes(checkpoint: Checkpoint, folder: str) -> dict[str, tuple[int, ...]] | None:
    """The shape of each tensor of a Transformer, by name; None where there are no weights under a usual name.

    Args:
        checkpoint: A checkpoint; of the Hub, the files are fetched.
        folder: One of `transformer_folders`.

    Raises:
        ValueError: A file is broken, or would have to be unpickled to more than tensors.
    """
    first = weights_in(checkpoint, folder)
    if first is None:
        return None
    paths = {first}
    if first.endswith(".json"):
        beside = {PurePosixPath(path).relative_to(folder).as_posix() for path in checkpoint.files if _is_in(path, folder)}
        ending = ".safetensors" if first.endswith(INDEX) else ".bin"
        shards = parse_index(checkpoint.fetch(first).read_bytes(), first, beside, ending)
        paths = {_in(folder, shard) for shard in shards.values()}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(paths):
        file = checkpoint.fetch(path)
        shapes |= shapes_in_pickle(file) if path.endswith(".bin") else _shapes_in(file)
    return shapes


def check_pickles(checkpoint: Checkpoint) -> None:
    """Refuse a `pytorch_model.bin` of a module after the Transformer that is more than tensors.

    Args:
        checkpoint: A checkpoint.

    Raises:
        ValueError: There is one, or it is broken.
    """
    for _, folder in checkpoint.modules[1:]:
        if weights_in(checkpoint, folder) == _in(folder, _BIN):
            shapes_in_pickle(checkpoint.fetch(_in(folder, _BIN)))


def check_broken(root: Path) -> None:
    """Name a file that is not what its ending says.

    Args:
        root: Folder of a checkpoint.

    Raises:
        ValueError: There is one.
    """
    for path in sorted([*root.glob("*"), *root.glob("*/*")]):
        if path.suffix == ".safetensors":
            header_of(path, str(path))
        elif path.suffix == ".json":
            try:
                json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path} is not usable JSON. {type(error).__name__}: {error}") from error


def shapes_in_pickle(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes in a `pytorch_model.bin`, read as tensors and nothing else.

    Args:
        path: Where it is.

    Raises:
        ValueError: It is broken or more than that; in words of our own, since those of torch suggest to run it.
    """
    try:
        found = torch.load(path, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(path))
        return {name: tuple(tensor.shape) for name, tensor in found.items()}
    except Exception as error:
        raise ValueError(
            f"{path} is broken, or holds more than tensors, which could run code when it is opened "
            f"({type(error).__name__}). Ask whoever made it for a safetensors file; do not open this one in another way."
        ) from None


def _in(folder: str, file: str) -> str:
    return f"{folder}/{file}" if folder else file


def _is_in(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _is_transformer(checkpoint: Checkpoint, folder: str) -> bool:
    if weights_in(checkpoint, folder) is None:
        return False
    try:
        config = json.loads(checkpoint.fetch(_in(folder, "config.json")).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False  # whoever reads it says what is wrong with it
    return isinstance(config, dict) and "model_type" in config


def _shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in header_of(path, str(path)).tensors}
