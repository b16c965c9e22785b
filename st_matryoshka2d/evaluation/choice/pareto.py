"""The sizes that are worth a look: no other is at least as good in everything and better in something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from st_matryoshka2d.evaluation.choice.cost import HOW_TO_TIME, costs, full_row, name_of
from st_matryoshka2d.evaluation.grid.tables import aligned

if TYPE_CHECKING:
    from st_matryoshka2d.evaluation.grid.result import GridResult

__all__ = ["Front", "checked_costs", "on_front", "pareto", "time_column"]

_COSTS = ["milliseconds_per_text", "num_layers", "parameters", "bytes", "dim"]


class Front(pd.DataFrame):
    """The table that `pareto` returns. It prints in few columns; whatever is made of it is a plain table.

    Columns are those of `costs`: `num_layers`, `dim`, `score`, `relative`, `precision`, `milliseconds_per_text`,
    `parameters` and `bytes`.
    """

    def __repr__(self) -> str:
        forms: dict[str, tuple[str, Callable[[Any], str]]] = {
            "score": ("score", lambda score: f"{score * 100:.2f}"),
            "relative": (f"of {self.attrs.get('largest', 'largest')}", lambda share: f"{share * 100:.1f} %"),
            "milliseconds_per_text": ("ms a text", "{:.3g}".format),
            "parameters": ("parameters", "{:,d}".format),
            "bytes": ("bytes", "{:d}".format),
        }
        known = [name for name in forms if self[name].notna().any()]
        body = [[name_of(row), *(forms[name][1](getattr(row, name)) for name in known)] for row in self.itertuples()]
        return aligned(["size", *(forms[name][0] for name in known)], body)

    __str__ = __repr__


def pareto(grid: GridResult, cost: str | Sequence[str] | None = None, task: str | None = None) -> Front:
    """The rows of `costs` on the front, cheapest first: a table to work with, that prints in few columns.

    Args:
        grid: The scores.
        cost: What counts as cost, one or several columns of `costs`; None for time (layers, without latency) and bytes.
        task: Name of one task; None for the mean over tasks.

    Raises:
        ValueError: There is no such cost or task, or the cost needs a latency that the grid lacks.

    Example:
        >>> from st_matryoshka2d import GridResult
        >>> row = {"task": "T", "split": "test", "subset": "default", "metric": "ndcg_at_10", "is_main": True}
        >>> scores = {(3, 128): 0.60, (3, 384): 0.67, (6, 128): 0.79, (6, 384): 0.84}
        >>> rows = [row | {"num_layers": n, "dim": d, "score": score} for (n, d), score in scores.items()]
        >>> grid = GridResult(pd.DataFrame(rows))
        >>> print(pareto(grid, "bytes"))
        |    size | score | of 6L-384d | bytes |
        | ------: | ----: | ---------: | ----: |
        | 6L-128d | 79.00 |     94.0 % |   512 |
        | 6L-384d | 84.00 |    100.0 % |  1536 |
        >>> pareto(grid, "bytes")[["num_layers", "dim", "score"]]
           num_layers  dim  score
        0           6  128   0.79
        1           6  384   0.84
        >>> len(pareto(grid))  # a size of fewer layers is worth a look too
        4
    """
    chosen = checked_costs(grid, [time_column(grid), "bytes"] if cost is None else cost)
    table = costs(grid, task)
    front = Front(table[on_front(table, chosen)].sort_values([*chosen, "score"], ignore_index=True))
    largest = full_row(table)
    if largest is not None:
        front.attrs["largest"] = name_of(largest)
    return front


def on_front(table: pd.DataFrame, chosen: Sequence[str]) -> pd.Series[bool]:
    r"""Which rows no other row dominates.

    Row i dominates row j when :math:`c_i \le c_j` for every cost c, :math:`s_i \ge s_j` for the score s, and one of these
    is not an equality. A row without a score is on no front.

    Args:
        table: What `costs` makes.
        chosen: Which of its columns are costs.
    """
    values = np.column_stack(
        [*(table[name].to_numpy(dtype=float) for name in chosen), -table["score"].to_numpy(dtype=float)]
    )
    no_worse = (values[:, None] <= values).all(axis=2)
    better = (values[:, None] < values).any(axis=2)
    dominated = pd.Series((no_worse & better).any(axis=0), table.index)
    return table["score"].notna() & ~dominated


def time_column(grid: GridResult) -> str:
    """What stands for the time of a size: its layers, as long as no depth was timed.

    Args:
        grid: The scores.
    """
    return "num_layers" if grid.latency is None else "milliseconds_per_text"


def checked_costs(grid: GridResult, cost: str | Sequence[str]) -> list[str]:
    """The names of costs as a list, if the grid knows them all.

    Args:
        grid: The scores.
        cost: One name or several.

    Raises:
        ValueError: One is unknown, or needs a latency that the grid lacks, or there is none.
    """
    chosen = [cost] if isinstance(cost, str) else list(cost)
    if not chosen or (unknown := [name for name in chosen if name not in _COSTS]):
        raise ValueError(f"A cost is one of {', '.join(_COSTS)}, got {unknown[0] if chosen else chosen!r}.")
    for name in chosen:
        if name in ("milliseconds_per_text", "parameters") and (grid.latency is None or name not in grid.latency):
            raise ValueError(f"The grid does not know {name}; give it the times of the model: {HOW_TO_TIME}.")
    return chosen
