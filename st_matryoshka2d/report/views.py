"""What a report shows, as tables that the page holds as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class TaskSizes:
    """The sizes of a model on one task, or on the mean over tasks, in the order in which `recommend` goes through them.

    Args:
        table: One row for each size: the columns of `costs`, `name`, `series`, the ends of the share's interval, and
            `front_time` and `front_bytes`, which mark the sizes on the Pareto fronts.
        metric: Name of the score.
        largest: Name of the size that shares refer to; empty if no size can be recommended.
        share_of: The score of that size, in words.
        examples: The queries or pairs behind the intervals; 0 if no interval is known.
        notes: What a reader has to know about the numbers.
    """

    table: pd.DataFrame
    metric: str
    largest: str
    share_of: str
    examples: int
    notes: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return plain values, the table as a list for each column, with None for NaN."""
        columns = {name: _plain(self.table[name]) for name in self.table}
        return {**vars(self), "notes": list(self.notes), "table": columns}


@dataclass(frozen=True)
class View:
    """One model, with documents of one size: names of its charts, the sizes of each task, by its name, and notes."""

    name: str
    series: Sequence[str]  # one for each precision
    tasks: Mapping[str, TaskSizes]
    notes: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        tasks = {name: sizes.to_json() for name, sizes in self.tasks.items()}
        return {"name": self.name, "series": list(self.series), "notes": list(self.notes), "tasks": tasks}


def _plain(column: pd.Series[Any]) -> list[Any]:
    return [None if pd.isna(value) else value for value in column.tolist()]
