"""Which sizes may make a shortlist for which others, and what the two stages cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from st_matryoshka2d.evaluation.choice.cost import vector_bytes
from st_matryoshka2d.evaluation.views.views import View

__all__ = ["ascending", "pairs_of", "stage_costs"]


def ascending(views: Sequence[View]) -> list[View]:
    """Smallest vectors first; of vectors that are as large, fewest layers first.

    Args:
        views: In any order.
    """
    return sorted(views, key=lambda view: (vector_bytes(view.size.dim, view.precision), view.size, view.precision))


def pairs_of(views: Sequence[View]) -> list[tuple[int, int]]:
    """All pairs whose first is cheaper: no more layers, dims and bits than the second, and less of one of them.

    Args:
        views: What each of the two may be.

    Returns:
        Places in `views`.

    Example:
        >>> from st_matryoshka2d import Size
        >>> pairs_of([View(Size(2, 64)), View(Size(6, 32)), View(Size(6, 64), "int8"), View(Size(6, 64))])
        [(0, 3), (1, 3), (2, 3)]
    """
    costs = [(view.size.num_layers, view.size.dim, vector_bytes(8, view.precision)) for view in views]
    return [
        (first, second)
        for first, second in permutations(range(len(views)), 2)
        if costs[first] != costs[second]
        and all(one <= other for one, other in zip(costs[first], costs[second], strict=True))
    ]


def stage_costs(first: View, second: View, k1: int, documents: int) -> dict[str, int]:
    r"""What is stored for a document, and what is computed for a query.

    With N documents, a search of all of them costs :math:`N d_1` multiplications, and the second stage :math:`k_1 d_2`
    more; the second size alone costs :math:`N d_2`.

    Args:
        first: Makes the shortlist.
        second: Puts it in order.
        k1: Length of the shortlist.
        documents: How many there are.

    Example:
        >>> from st_matryoshka2d import Size
        >>> for name, cost in stage_costs(View(Size(6, 64)), View(Size(6, 384)), 100, 5000).items():
        ...     print(name, cost)
        first_bytes 256
        second_bytes 1536
        first_multiply_adds 320000
        second_multiply_adds 38400
        alone_multiply_adds 1920000
    """
    return {
        "first_bytes": vector_bytes(first.size.dim, first.precision),
        "second_bytes": vector_bytes(second.size.dim, second.precision),
        "first_multiply_adds": documents * first.size.dim,
        "second_multiply_adds": min(k1, documents) * second.size.dim,
        "alone_multiply_adds": documents * second.size.dim,
    }
