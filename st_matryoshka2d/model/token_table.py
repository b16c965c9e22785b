"""Depth 0: a row in the whole model's space for each token, in place of a network."""

from __future__ import annotations

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import nn

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.readout import Readout


def is_table(model: object) -> bool:
    """Whether a model is a token table alone, such as the cut of depth 0."""
    return isinstance(model, SentenceTransformer) and isinstance(next(model.children()), StaticEmbedding)


def token_table(model: nn.Module) -> StaticEmbedding | None:
    """Return the table of a model, or None."""
    if is_table(model):
        return next(module for module in model.modules() if isinstance(module, StaticEmbedding))
    tables = (module.table for module in model.modules() if isinstance(module, Readout))
    return next((table for table in tables if table is not None), None)


def least_depth(model: nn.Module) -> int:
    """Return the smallest depth of a model: 0 with a table, otherwise 1."""
    return 1 if token_table(model) is None else 0


def require_table(model: nn.Module) -> StaticEmbedding:
    """Return the table of a model; refuse one without."""
    table = token_table(model)
    if table is None:
        raise UsageError(
            "This model has no token table, which 0 layers mean. `fit_queries(model, documents)` gives it one; a saved "
            "one is only read by `st_matryoshka2d.load`."
        )
    return table
