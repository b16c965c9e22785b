"""The documents that a search found, with what people said of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from st_matryoshka2d.evaluation.search.found import Found

__all__ = ["Judged", "judged", "position_in"]

_NOWHERE = 2**40

# Instead of an ideal of 0, where all gains are 0 too.
_TINY = 1e-12


@dataclass(frozen=True)
class Judged:
    """For some queries, all documents that a view found, in the order in which trec_eval breaks ties: by id, descending.

    Args:
        gains: Relevance; 0 where there is none or nobody judged.
        relevant: How many documents are relevant, found or not.
        ideal: Discounted gains of the best ranking there could be; never 0.
        scores: Similarities under each view.
        places: Place of the document in each view's own ranking, from 0; very large where it is not in it.
    """

    gains: Float[Tensor, "queries kept"]
    relevant: Int[Tensor, "queries"]
    ideal: Float[Tensor, "queries"]
    scores: Float[Tensor, "views queries kept"]
    places: Int[Tensor, "views queries kept"]


def judged(
    found: Found, relevance: Mapping[str, Mapping[str, int]], k: int, *, ignore_identical_ids: bool
) -> Iterator[Judged]:
    """Judge what was found, block by block.

    Args:
        found: With candidates.
        relevance: By query and document.
        k: How many documents the ideal ranking has.
        ignore_identical_ids: Whether a document that has the query's own id is to be left out of all rankings.
    """
    row_of = {name: row for row, name in found.ids.items()}
    rows_by_id = torch.tensor([sorted(found.ids, key=found.ids.__getitem__, reverse=True)])
    start = 0
    for rankings, candidates in zip(found.rankings, found.candidates, strict=True):
        queries = found.query_ids[start : start + len(candidates.rows)]
        start += len(queries)
        columns = position_in(candidates.rows.reshape(1, -1), rows_by_id).view_as(candidates.rows).argsort(dim=1)
        rows = candidates.rows.gather(1, columns)
        # Not from the scores: of documents that a view cannot tell apart, the candidates have those that other views like.
        places = torch.stack([position_in(rows, of_view) for of_view in rankings.rows])
        if ignore_identical_ids:
            own = rows == torch.tensor([row_of.get(query, -2) for query in queries])[:, None]
            places = _without(places, own)
        grades = [{doc: max(grade, 0) for doc, grade in relevance[query].items()} for query in queries]
        yield Judged(
            _gains(rows, grades, row_of),
            torch.tensor([sum(grade > 0 for grade in of_query.values()) for of_query in grades]),
            torch.tensor([_ideal(of_query.values(), k) for of_query in grades], dtype=torch.float64).clamp_min(_TINY),
            candidates.scores.gather(2, columns.expand(len(candidates.scores), -1, -1)),
            places,
        )


def position_in(rows: Int[Tensor, "queries kept"], lists: Int[Tensor, "queries listed"]) -> Int[Tensor, "queries kept"]:
    """Where each row is in the list of its query; very large where it is not in it.

    Args:
        rows: Rows of a corpus; a negative one is in no list.
        lists: In any order; negative ones are no rows.

    Example:
        >>> position_in(torch.tensor([[7, 5]]), torch.tensor([[3, 5, 7, -1]])).tolist()
        [[2, 1]]
    """
    ordered, order = lists.sort(dim=1)
    at = torch.searchsorted(ordered, rows.to(ordered.dtype)).clamp_max(lists.shape[1] - 1)
    there = (ordered.gather(1, at) == rows) & (rows >= 0)
    return order.gather(1, at).masked_fill(~there, _NOWHERE)


def _without(places: Int[Tensor, "views queries kept"], own: Tensor) -> Int[Tensor, "views queries kept"]:
    """Places as they are when some documents were never there: those behind move up by one."""
    of_own = places.masked_fill(~own, _NOWHERE).amin(dim=2, keepdim=True)
    return (places - (places > of_own).to(places.dtype)).masked_fill(own, _NOWHERE)


def _gains(rows: Tensor, grades: Sequence[Mapping[str, int]], row_of: Mapping[str, int]) -> Tensor:
    longest = max(1, *(len(of_query) for of_query in grades))
    padding = [[-1] * (longest - len(of_query)) for of_query in grades]
    listed = [[row_of.get(doc, -1) for doc in of_query] + pad for of_query, pad in zip(grades, padding, strict=True)]
    values = [[*of_query.values(), *pad] for of_query, pad in zip(grades, padding, strict=True)]
    at = position_in(rows, torch.tensor(listed))
    gains = torch.tensor(values, dtype=torch.float64).gather(1, at.clamp_max(longest - 1))
    return gains.masked_fill(at >= longest, 0)


def _ideal(grades: Iterable[int], k: int) -> float:
    best = sorted(grades, reverse=True)[:k]
    return sum(grade / math.log2(rank + 1) for rank, grade in enumerate(best, 1))
