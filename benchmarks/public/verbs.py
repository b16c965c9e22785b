"""Ways to a cheap query side: from documents and questions to models whose queries search an index of the whole one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sentence_transformers import SentenceTransformer

from public.fit import Fit
from public.layers import free, healings, leaf, shallow, trained
from public.remembering import Remembering
from public.trained_table import trained_table
from st_matryoshka2d import fit_queries, truncate

__all__ = ["Verb", "verbs"]

Way = Callable[[Remembering, Fit], SentenceTransformer]
Verb = Callable[[Remembering, Fit], dict[str, SentenceTransformer]]


def table(model: Remembering, of: Fit) -> SentenceTransformer:
    """Fit a token table: `fit_queries`."""
    asked, embeddings = of.questions or None, model.encode_document(of.documents)
    fitted = fit_queries(model, of.documents, queries=asked, embeddings=embeddings, show_progress_bar=False)
    return truncate(fitted, num_layers=0)


def alone(name: str, way: Way) -> Verb:
    """Name the model that a way makes."""
    return lambda model, of: {name: way(model, of)}


def verbs(minutes: float, read: tuple[int, int]) -> dict[str, Verb]:
    """Name all ways; tables are trained for so many minutes of a core, layers read so many documents and short texts."""
    ways: dict[str, Way] = {
        "fit_queries": table,
        "table, trained": partial(trained_table, loss="cosine", minutes=minutes),
        "table, trained to rank": partial(trained_table, loss="ranking", minutes=minutes),
        "align, then trained": partial(trained, read=read),
        "LEAF": leaf,
    }
    of_layers: dict[str, Verb] = {"align": partial(shallow, read=read), "not aligned": free, **healings(read)}
    return {name: alone(name, way) for name, way in ways.items()} | of_layers
