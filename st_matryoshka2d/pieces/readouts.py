"""The readouts of an aligned model, from its folder or the Hub: only those of the depths that are wanted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Router
from torch import nn

from st_matryoshka2d.pieces.checkpoint import WEIGHTS, Checkpoint
from st_matryoshka2d.readout import Readout
from st_matryoshka2d.readout_files import linear_of, read_readouts, readout_file

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
    for folder, dense in _places(model, checkpoint).items():
        weights = load_file(_fetched(checkpoint, folder, WEIGHTS))
        files = [_fetched(checkpoint, folder, readout_file(depth)) for depth in depths]
        stored = read_readouts(files, linear_of(weights["linear.weight"], weights["linear.bias"]))
        replace_module(model, dense, Readout.around(dense, stored))


def _places(model: SentenceTransformer, checkpoint: Checkpoint) -> dict[str, Dense]:
    """Folders of readouts, and what plain sentence-transformers made of them: the last `Dense` of every way of a text."""
    first = next(model.children())
    if isinstance(first, Router):
        config = checkpoint.download(Router.config_file_name)
        folders = json.loads(config.read_text(encoding="utf-8"))["structure"]
        ways = [
            zip(map(checkpoint.within_transformer, folders[name]), way.children(), strict=True)
            for name, way in first.sub_modules.items()
        ]
    else:
        ways = [zip((folder for _, folder in checkpoint.modules), model.children(), strict=False)]
    dense = [[(folder, module) for folder, module in way if type(module) is Dense] for way in ways]
    if not all(dense):
        raise ValueError(
            f"The config.json of {checkpoint.name} says that the model is aligned, but it has no Dense module, in whose "
            "folder the readouts would be. Save the aligned model anew; or, for its Transformer alone, remove "
            "matryoshka_readouts."
        )
    return dict(each[-1] for each in dense)


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
