"""Choose the strength on queries left out, fit the table on all, and measure what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import cosine_similarity

from st_matryoshka2d.aligning.agreement import agreement
from st_matryoshka2d.model.table import Table
from st_matryoshka2d.queries.refine import refined
from st_matryoshka2d.queries.solve import solved
from st_matryoshka2d.queries.token_counts import TokenCounts
from st_matryoshka2d.sizes import Size, mrl_dims, prefix
from st_matryoshka2d.vocabulary.shrink import Vocabulary

if TYPE_CHECKING:
    from jaxtyping import Float

_HELD, _MOST_HELD = 0.1, 1000  # share of the queries that is left out to choose by, and the most
_STRENGTHS = (1.0, 0.3, 0.1, 0.03)
_COMPARED = 512  # held-out queries, with each other
_WHOLE = 2**16  # a vocabulary of at most so many tokens is kept whole


def fit_table(
    counted: TokenCounts,
    queries: Sequence[str],
    true: Float[np.ndarray, "texts dim"],
    documents: Float[np.ndarray, "documents dim"],
    num_layers: int,
    whole_vocabulary: bool | None = None,
    hidden: bool | None = None,
) -> tuple[Table, dict[Size, float]]:
    """Fit on documents, of which some are embedded, and on queries in random order; also return how the sizes agree."""
    tokens = counted.tokens(queries)
    held = min(_MOST_HELD, max(1, round(_HELD * len(queries))))
    counted.add(tokens[held:], true[held:], counted.side)
    narrow, occur = counted.narrowed(tokens[:held])
    places = [np.searchsorted(occur, ids).tolist() for ids in tokens]
    left, mean = places[:held], narrow.sums.means[narrow.side]
    table = _chosen(narrow, left, true[:held] - mean)
    table = refined(table, places[held:], true[held:], documents, mean, hidden)
    true = true[:held]
    agreement = _agreement(_pooled(table, left), true, num_layers)
    rows = narrow.sums.of_words(counted.sums.words)
    rows[occur] = table
    # The mean of a query's rows is shorter than what it stands for, which matters to a model
    # that does not normalize.
    length = np.linalg.norm(_pooled(table, left), axis=1).mean()
    rows *= np.linalg.norm(true, axis=1).mean() / length if length else 1.0
    tokenizer, former = counted.tokenizer, list(range(len(rows)))
    if not (len(rows) <= _WHOLE if whole_vocabulary is None else whole_vocabulary):
        kept = Vocabulary(tokenizer).shrunk(occur.tolist())
        tokenizer, former = kept.tokenizer, kept.former
    return Table(tokenizer, embedding_weights=torch.from_numpy(rows[former])), agreement


def _chosen(
    narrow: TokenCounts, left: list[list[int]], true: Float[np.ndarray, "held dim"]
) -> Float[np.ndarray, "tokens dim"]:
    """Fit with each strength, from the table before; return what is best on held-out texts."""
    table, best = narrow.sums.start(), (-np.inf, narrow.sums.start())
    for strength in _STRENGTHS:
        table = solved(narrow.blocks, narrow.sums, strength, table)
        if (closeness := _closeness(_pooled(table, left), true)) > best[0]:
            best = closeness, table
    return best[1]


def _pooled(table: Float[np.ndarray, "tokens dim"], texts: Sequence[Sequence[int]]) -> Float[np.ndarray, "texts dim"]:
    """Embed texts by their token ids as a `StaticEmbedding` does."""
    none = np.zeros(table.shape[1], np.float32)
    return np.stack([table[tokens].mean(0) if tokens else none for tokens in texts])


def _closeness(pooled: Float[np.ndarray, "texts dim"], true: Float[np.ndarray, "texts dim"]) -> float:
    """Return the mean cosine with the whole model's embeddings, without their mean."""
    return float(cosine_similarity(torch.from_numpy(pooled), torch.from_numpy(true)).mean())


def _agreement(
    pooled: Float[np.ndarray, "held dim"], true: Float[np.ndarray, "held dim"], num_layers: int
) -> dict[Size, float]:
    """Measure the table at each dim, and the whole model, which is only narrowed."""
    predicted, whole = torch.from_numpy(pooled[:_COMPARED]), torch.from_numpy(true[:_COMPARED])
    if len(whole) < 3:  # too few to have different similarities
        return {}
    measured = {}
    for dim in (*mrl_dims(whole.shape[1]), whole.shape[1]):
        measured[Size(0, dim)] = agreement(prefix(predicted, dim), whole)
        measured[Size(num_layers, dim)] = agreement(prefix(whole, dim), whole)
    return measured
