"""The readouts of an aligned model, from its folder or the Hub: only those of the depths that are wanted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from torch import nn

from st_matryoshka2d.pieces.checkpoint import WEIGHTS, Checkpoint
from st_matryoshka2d.readout import Readout, fingerprint, read_readouts, readout_file

__all__ = ["add_readouts", "replace_module"]


def add_readouts(model: SentenceTransformer, checkpoint: Checkpoint, depths: Iterable[int]) -> None:
    """Put the readouts of an aligned checkpoint into what plain sentence-transformers loaded of it.

    Args:
        model: The pipeline; its `Dense` of the whole model becomes a `Readout`.
        checkpoint: Where it is from.
        depths: Readouts wanted.

    Raises:
        ValueError: A file is missing, broken, or of another model.
    """
    for folder in _folders(checkpoint):
        weights = load_file(_fetched(checkpoint, folder, WEIGHTS))
        of = fingerprint(weights["linear.weight"], weights["linear.bias"])
        stored = read_readouts([_fetched(checkpoint, folder, readout_file(depth)) for depth in depths], of)
        dense = _dense_of(model, weights["linear.weight"])
        replace_module(model, dense, Readout.around(dense, stored))


def _folders(checkpoint: Checkpoint) -> list[str]:
    """Where the readouts lie: in that of the last `Dense`, or for each route of a Router in one below its folder."""
    dense = [folder for kind, folder in checkpoint.modules if kind.endswith(".Dense")]
    if dense:
        return dense[-1:]
    marked = [PurePosixPath(path) for path in checkpoint.files if PurePosixPath(path).match(readout_file("*"))]
    return sorted({str(path.parent) for path in marked})


def _fetched(checkpoint: Checkpoint, folder: str, file: str) -> Path:
    try:
        path = checkpoint.fetch(f"{folder}/{file}")
    except (EntryNotFoundError, LocalEntryNotFoundError) as error:
        raise ValueError(_missing(checkpoint, folder, file)) from error
    if not path.is_file():
        raise ValueError(_missing(checkpoint, folder, file))
    return path


def _missing(checkpoint: Checkpoint, folder: str, file: str) -> str:
    return (
        f"{checkpoint.name} is aligned, but {folder}/{file} is missing: without it, embeddings of that depth are not in the "
        "space of the whole model. Fetch or save the aligned model anew."
    )


def _dense_of(model: SentenceTransformer, weight: torch.Tensor) -> Dense:
    """The `Dense` that has this weight."""
    for module in model.modules():
        if type(module) is Dense and torch.equal(module.linear.weight.cpu(), weight.to(module.linear.weight.dtype)):
            return module
    raise ValueError("The readouts belong to a Dense module that the pipeline does not have. Save the aligned model anew.")


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module into the place of another, wherever in the pipeline that is.

    Args:
        model: The pipeline, which is changed.
        old: What it has.
        new: What it gets.
    """
    for container in model.modules():
        for name, module in container._modules.items():
            if module is old:
                container._modules[name] = new
