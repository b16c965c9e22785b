"""Put a token table into the pipeline of a model."""

from __future__ import annotations

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from st_matryoshka2d._hosts.torch import around, parts
from st_matryoshka2d.model.identity import inherit_card
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import Readout
from st_matryoshka2d.model.readout_files import linear_of
from st_matryoshka2d.model.sides import with_modules
from st_matryoshka2d.model.trial import share_memory


def with_table(model: SentenceTransformer, table: StaticEmbedding) -> SentenceTransformer:
    """Return a pipeline that shares the weights of the model and has the table; the full size stays bit for bit."""
    full = Pipeline.of(model).full
    modules = {name: share_memory(module) for name, module in model.named_children()}
    tail = [modules.popitem()[1] for _ in Pipeline.of(model).trailing_normalize()]
    table = table.to(device=model.device, dtype=model.dtype or torch.float32)
    last = list(modules.values())[-1]
    if isinstance(last, Readout):
        name, _ = modules.popitem()
        readout = around(last, {**parts(last), "table": table.requires_grad_(False)})
    else:
        name, alike = str(len(modules)), table.embedding.weight
        same = linear_of(torch.eye(full.dim).to(alike), torch.zeros(full.dim).to(alike))
        readout = Readout(full.num_layers, same, {}, table).train(model.training)
    after = {str(len(modules) + place): module for place, module in enumerate(reversed(tail), start=1)}
    made = with_modules(model, {**modules, name: readout, **after}, SentenceTransformer)
    inherit_card(made, model)
    config = Pipeline.of(made).transformer.model.config
    config.matryoshka_readouts = sorted({0, *(getattr(config, "matryoshka_readouts", None) or [])})
    return made
