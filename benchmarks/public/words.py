"""Search by words."""

from __future__ import annotations

import bm25s
import numpy as np
import Stemmer

from public.sets import Rows

__all__ = ["keywords", "together"]


def keywords(documents: list[str], queries: list[str]) -> Rows:
    """Score documents by BM25, with English stems and without stop words."""
    split = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    found = bm25s.tokenize(documents, **split)
    index = bm25s.BM25()
    index.index(found, show_progress=False)
    asked = bm25s.tokenize(queries, return_ids=False, **split)
    return np.stack([index.get_scores(words) if words else np.zeros(len(documents)) for words in asked])


def together(one: Rows, other: Rows) -> Rows:
    """Add scores on one scale."""
    scaled = [scores / np.abs(scores).max(1, keepdims=True).clip(1e-12) for scores in (one, other)]
    return np.asarray(scaled[0] + scaled[1])
