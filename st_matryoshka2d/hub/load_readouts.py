"""Load the readouts of an aligned model for the wanted depths, and the token table of depth 0."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules import Dense, Normalize, Router
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import nn

from st_matryoshka2d._hosts.torch import parts, put
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.hub.checkpoint import ABOUT, WEIGHTS, Checkpoint
from st_matryoshka2d.model.cut_config import Cut
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.identity import take_origin
from st_matryoshka2d.model.readout import Readout, require_readouts, tell_of_readouts
from st_matryoshka2d.model.readout_files import StoredReadouts, linear_of, read_readouts, readout_file
from st_matryoshka2d.model.table import Table


def add_readouts(model: BaseModel, checkpoint: Checkpoint, cut: Cut) -> None:
    """Add the readout of its depth to a loaded aligned model, or those of all depths if it has all layers."""
    depths, num_layers = cut.declaration.readouts or [], cut.num_layers
    is_whole = bool(depths) and cut.is_whole
    if not is_whole and num_layers not in depths:
        require_readouts(model, cut.declaration, cut.layers.total, [num_layers])
        return
    for folder, dense in _places(model, checkpoint).items():
        stored = _stored(checkpoint, folder, depths if is_whole else [num_layers])
        readout = Readout.around(dense, stored)
        _replace(model, dense, readout if is_whole else readout.cut(num_layers).plain())
    if is_whole:
        tell_of_readouts(model)


def require_declared(checkpoint: Checkpoint, declaration: Declaration) -> None:
    """Refuse an adapter with readouts whose base model does not declare them: which layers they are for is not known."""
    if declaration.readouts or not checkpoint.adapter_folders:
        return
    if any(PurePosixPath(path).match(readout_file("*")) for path in checkpoint.files):
        raise UsageError(
            f"{checkpoint.name} is a PEFT adapter of an aligned model, and names a base model that is not aligned, so its "
            "readouts cannot be used. Merge the adapter first, by `truncate(model, num_layers=...)` with all layers; or "
            "save the aligned model, load it, and add the adapter to that."
        )


def _stored(checkpoint: Checkpoint, folder: str, depths: Iterable[int]) -> StoredReadouts:
    """Read the readouts of some depths."""
    # a pickle only gets here with `allow_bin`
    file = Path(checkpoint.weights_in(folder) or WEIGHTS).name
    weights = Dense.load_torch_weights(str(_fetched(checkpoint, folder, file).parent))
    files = [_fetched(checkpoint, folder, readout_file(depth)) for depth in depths]
    return read_readouts(files, linear_of(weights["linear.weight"], weights["linear.bias"]))


def _places(model: BaseModel, checkpoint: Checkpoint) -> dict[str, Dense]:
    """Find the folder and the module of each readout: the last `Dense` of every route."""
    first = next(model.children())
    if isinstance(first, Router):
        config = checkpoint.fetch(checkpoint.within_transformer(Router.config_file_name))
        folders = json.loads(config.read_text(encoding="utf-8"))["structure"]
        routes = [
            zip(map(checkpoint.within_transformer, folders[name]), route.children(), strict=True)
            for name, route in first.sub_modules.items()
        ]
    else:
        routes = [zip(checkpoint.module_folders, model.children(), strict=False)]
    dense = [[(folder, module) for folder, module in route if type(module) is Dense] for route in routes]
    if not all(dense):
        raise UsageError(
            f"The config.json of {checkpoint.name} says that the model is aligned, but it has no Dense module with "
            "readouts. Save the aligned model again."
        )
    return dict(modules[-1] for modules in dense)


def _fetched(checkpoint: Checkpoint, folder: str, file: str) -> Path:
    """Return the local path of a file; refuse a checkpoint that lacks it."""
    with suppress(EntryNotFoundError, LocalEntryNotFoundError):
        if (path := checkpoint.fetch(f"{folder}/{file}")).is_file():
            return path
    raise UsageError(
        f"{checkpoint.name} is aligned, but {folder}/{file} is missing: without it, embeddings of that depth are not in the "
        "space of the whole model. Download or save the aligned model again."
    )


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module wherever it occurs in the pipeline."""
    for container in model.modules():
        for name, module in parts(container).items():
            if module is old:
                put(container, name, new)


_PROMPTS = ("query", "document")  # of a checkpoint that names none, as in sentence-transformers


def load_table(checkpoint: Checkpoint, kwargs: dict[str, Any]) -> SentenceTransformer:
    """Load the table as the pipeline that `truncate(model, num_layers=0)` makes."""
    folder = [folder for kind, folder in checkpoint.modules if kind.endswith(".Dense")][-1]
    stored = _stored(checkpoint, folder, [0])
    if stored.table is None:
        raise UsageError(f"{folder}/{readout_file(0)} of {checkpoint.name} holds no table. Fit the queries again.")
    of = None if checkpoint.commit is None else checkpoint.name
    modules: list[nn.Module] = [Table.of(stored.table, {**stored.table.fit, "model": of})]
    modules += [Normalize() for kind, _ in checkpoint.modules[-1:] if kind.endswith(".Normalize")]
    about = json.loads(checkpoint.fetch(ABOUT).read_text(encoding="utf-8")) if ABOUT in checkpoint.files else {}
    model = SentenceTransformer(
        modules=modules,
        device=kwargs.get("device"),
        similarity_fn_name=kwargs.get("similarity_fn_name") or about.get("similarity_fn_name"),
        truncate_dim=kwargs.get("truncate_dim") or about.get("truncate_dim"),
    )
    own_tables(model, kwargs)
    model.prompts = dict.fromkeys(about.get("prompts") or _PROMPTS, "")
    # the card tells what the table is a part of
    card = model.model_card_data
    if checkpoint.commit:
        card.set_base_model(checkpoint.name, revision=checkpoint.commit)
    else:
        card.model_name = f"local/{checkpoint.root.resolve().name}"
    if "README.md" in checkpoint.files:
        take_origin(model, checkpoint.fetch("README.md").read_text(encoding="utf-8"))
    return model


def own_tables(model: nn.Module, kwargs: dict[str, Any]) -> None:
    """Make tables our own, in the precision asked for or stored, which sentence-transformers tells networks alone."""
    asked = kwargs.get("model_kwargs") or {}
    dtype = asked.get("dtype", asked.get("torch_dtype"))
    dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype  # or "auto"
    for module in list(model.modules()):
        if isinstance(module, StaticEmbedding):
            table = Table.around(module, module.embedding)
            if isinstance(dtype, torch.dtype):
                table.to(dtype)
            elif table.is_stored_in_half():
                table.half()
            _replace(model, module, table)
