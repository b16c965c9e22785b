"""How good the ranking is that comes out of a funnel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from st_matryoshka2d.evaluation.funnel.judged import Judged

__all__ = ["Funnel", "Measures", "measured"]


@dataclass(frozen=True)
class Funnel:
    """Two stages.

    Args:
        first: Which view makes the shortlist.
        second: Which view puts it in order.
        k1: Length of the shortlist.
    """

    first: int
    second: int
    k1: int


@dataclass(frozen=True)
class Measures:
    """Means over queries.

    Args:
        recall_at_k1: Share of a query's relevant documents that are in the shortlist.
        ndcg: nDCG@k of what comes out.
        recall: Share of a query's relevant documents that are in the first k of what comes out.
    """

    recall_at_k1: float
    ndcg: float
    recall: float


def measured(blocks: Iterable[Judged], funnels: Sequence[Funnel], k: int) -> list[Measures]:
    r"""Judge the rankings of many funnels at once.

    As trec_eval does: with the relevance :math:`g_r` of the document at rank r and :math:`g^*_r` of the one that should be
    there, :math:`\mathrm{nDCG@}k = \sum_{r \le k} \frac{g_r}{\log_2(r + 1)} / \sum_{r \le k} \frac{g^*_r}{\log_2(r + 1)}`.
    A query without a relevant document counts as 0.

    Args:
        blocks: What was found for the queries, block by block.
        funnels: Which shortlist, and by which view it is put in order.
        k: How many documents come out.

    Returns:
        Of each funnel.
    """
    totals, queries = torch.zeros(len(funnels), 3, dtype=torch.float64), 0
    for block in blocks:
        orders = {
            second: block.scores[second].argsort(dim=1, descending=True, stable=True)
            for second in {funnel.second for funnel in funnels}
        }
        totals += torch.stack([_totals(block, funnel, orders[funnel.second], k) for funnel in funnels])
        queries += len(block.gains)
    return [Measures(*of_funnel) for of_funnel in (totals / queries).tolist()]


def _totals(block: Judged, funnel: Funnel, order: Int[Tensor, "queries kept"], k: int) -> Float[Tensor, "3"]:
    """Sums over the queries of a block.

    Args:
        block: What was found.
        funnel: Which shortlist.
        order: Best document first, under the second view.
        k: How many documents come out.
    """
    gains = block.gains.gather(1, order)
    listed = block.places[funnel.first].gather(1, order) < funnel.k1
    rank = listed.cumsum(dim=1).clamp_min(1)
    out = listed & (rank <= k)
    discounted = (gains * out / torch.log2(rank + 1.0)).sum(dim=1)
    relevant = block.relevant.clamp_min(1)
    return torch.stack(
        [
            (((gains > 0) & listed).sum(dim=1) / relevant).sum(),
            (discounted / block.ideal).sum(),
            (((gains > 0) & out).sum(dim=1) / relevant).sum(),
        ]
    )
