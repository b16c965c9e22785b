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

__all__ = ["VERBS", "table"]


def table(model: Remembering, of: Fit) -> SentenceTransformer:
    """Fit a token table in closed form: `fit_queries`."""
    asked, embeddings = of.questions or None, model.encode_document(of.documents)
    fitted = fit_queries(model, of.documents, queries=asked, embeddings=embeddings, show_progress_bar=False)
    return truncate(fitted, num_layers=0)


VERBS: dict[str, Callable[[Remembering, Fit], SentenceTransformer]] = {
    "fit_queries": table,
    "table, trained": partial(trained_table, loss="cosine"),
    "table, trained to rank": partial(trained_table, loss="ranking"),
    "closed form, then trained": lambda model, of: trained_table(model, of, loss="cosine", start=table(model, of)),
    "closed form, then trained to rank": lambda model, of: trained_table(model, of, loss="ranking", start=table(model, of)),
    "align": aligned,
    "align, then trained": trained,
    "LEAF": leaf,
}
