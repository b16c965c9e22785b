"""Load depth 0 of a checkpoint: the token table alone, without the weights of the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import nn

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.hub.checkpoint import WEIGHTS, Checkpoint
from st_matryoshka2d.hub.readouts import fetched
from st_matryoshka2d.hub.weights import read_config, without_pickles
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.identity import name_apart, take_origin
from st_matryoshka2d.model.readout_files import linear_of, read_readouts, readout_file
from st_matryoshka2d.sizes import Size, within

_ABOUT = "config_sentence_transformers.json"
_PROMPTS = ("query", "document")  # of a checkpoint that names none, as in sentence-transformers


def load_table(checkpoint: Checkpoint, kwargs: dict[str, Any], dim: int | None, allow_bin: bool) -> SentenceTransformer:
    """Load the table as the pipeline that `truncate(model, num_layers=0)` makes."""
    folder = _folder(checkpoint, kwargs)
    without_pickles(checkpoint, allow_bin, kwargs)
    file = Path(checkpoint.weights_in(folder) or WEIGHTS).name
    weights = Dense.load_torch_weights(str(fetched(checkpoint, folder, file).parent))
    whole = linear_of(weights["linear.weight"], weights["linear.bias"])
    stored = read_readouts([fetched(checkpoint, folder, readout_file(0))], whole)
    if stored.table is None:
        raise UsageError(f"{folder}/{readout_file(0)} of {checkpoint.name} holds no table. Fit the queries again.")
    modules: list[nn.Module] = [stored.table]
    modules += [Normalize() for kind, _ in checkpoint.modules[-1:] if kind.endswith(".Normalize")]
    about = json.loads(checkpoint.fetch(_ABOUT).read_text(encoding="utf-8")) if _ABOUT in checkpoint.files else {}
    model = SentenceTransformer(
        modules=modules,
        device=kwargs.get("device"),
        similarity_fn_name=kwargs.get("similarity_fn_name") or about.get("similarity_fn_name"),
        truncate_dim=kwargs.get("truncate_dim") or about.get("truncate_dim"),
    )
    cast_tables(model, kwargs)
    model.prompts = dict.fromkeys(about.get("prompts") or _PROMPTS, "")
    if dim is not None:
        model.truncate_dim = within(dim, whole.out_features, "dim")
    _name(model, checkpoint, Size(0, model.truncate_dim or whole.out_features))
    return model


def cast_tables(model: nn.Module, kwargs: dict[str, Any]) -> None:
    """Cast tables to the precision asked for, which sentence-transformers tells networks alone."""
    asked = kwargs.get("model_kwargs") or {}
    dtype = asked.get("dtype", asked.get("torch_dtype"))
    dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype  # or "auto"
    for module in model.modules():
        if isinstance(module, StaticEmbedding) and isinstance(dtype, torch.dtype):
            module.to(dtype)


def _folder(checkpoint: Checkpoint, kwargs: dict[str, Any]) -> str:
    """Return the folder of the readout with the table; refuse a checkpoint without one."""
    folders = [folder for kind, folder in checkpoint.modules if kind.endswith(".Dense")]
    config = read_config(checkpoint, checkpoint.transformer, kwargs) if folders and checkpoint.is_plain else None
    if 0 not in (Declaration.of(config).readouts or []):
        raise UsageError(
            f"{checkpoint.name} has no token table, which 0 layers mean. Load the whole model, give it one with "
            "`fit_queries(model, documents)`, and save it."
        )
    return folders[-1]


def _name(model: SentenceTransformer, checkpoint: Checkpoint, size: Size) -> None:
    """Write into the card what the table is a part of."""
    card = model.model_card_data
    if checkpoint.commit:
        card.set_base_model(checkpoint.name, revision=checkpoint.commit)
    else:
        card.model_name = f"local/{checkpoint.root.resolve().name}"
    if "README.md" in checkpoint.files:
        take_origin(model, checkpoint.fetch("README.md").read_text(encoding="utf-8"))
    name_apart(model, model, size)
