"""Ways to a cheap query side: from documents and questions to a model whose queries search an index of the whole one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sentence_transformers import SentenceTransformer

from public.fit import Fit
from public.layers import aligned, leaf, trained
from public.remembering import Remembering
from public.trained_table import trained_table
from st_matryoshka2d import fit_queries, truncate

__all__ = ["verbs"]


def table(model: Remembering, of: Fit) -> SentenceTransformer:
    """Fit a token table: `fit_queries`."""
    asked, embeddings = of.questions or None, model.encode_document(of.documents)
    fitted = fit_queries(model, of.documents, queries=asked, embeddings=embeddings, show_progress_bar=False)
    return truncate(fitted, num_layers=0)


def verbs(minutes: float) -> dict[str, Callable[[Remembering, Fit], SentenceTransformer]]:
    """Name all ways; tables are trained for so many minutes of a core."""
    return {
        "fit_queries": table,
        "table, trained": partial(trained_table, loss="cosine", minutes=minutes),
        "table, trained to rank": partial(trained_table, loss="ranking", minutes=minutes),
        "align": aligned,
        "align, then trained": trained,
        "LEAF": leaf,
    }
