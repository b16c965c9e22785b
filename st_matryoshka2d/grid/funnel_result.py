"""Scores and costs of two-stage search."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from st_matryoshka2d.files.tables import SavedTable, TableFile
from st_matryoshka2d.grid import pivots, text_tables
from st_matryoshka2d.grid.grid_tables import AXES, axis_labels
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Columns that describe a funnel, identify a row, and are measured per task.
_FUNNEL = ["first", "second", "k1", "k", "first_bytes", "second_bytes"]
_KEYS = ["task", "split", "subset", "first", "second", "k1"]
_SCORES = ["recall_at_k1", "ndcg", "recall", "ndcg_alone", "recall_alone"]
_MEASURED = [*_SCORES, "first_multiply_adds", "second_multiply_adds", "alone_multiply_adds"]
_COLUMNS = [*dict.fromkeys([*_KEYS, *_FUNNEL, "queries", "documents", *_MEASURED])]
_KINDS = {**dict.fromkeys(_COLUMNS, int), **dict.fromkeys(_KEYS[:5], str), **dict.fromkeys(_SCORES, float)}

# Values that a table or a figure can show, with their labels.
_SHOWN = {
    "ndcg_kept": "nDCG@{k} kept of {second} alone",
    "recall_kept": "recall@{k} kept of {second} alone",
    "recall_at_k1": "recall in the shortlist",
    "ndcg": "nDCG@{k}",
    "recall": "recall@{k}",
}


@dataclass(frozen=True, eq=False, repr=False)
class FunnelResult(SavedTable):
    """Scores of two-stage search: a first size makes a shortlist of k1 documents, and a second size re-ranks it.

    Scores are fractions; prints and figures are in percent. The score of a task is the mean over its splits and subsets, and
    the score of several tasks is the mean over the tasks. `ndcg_kept` and `recall_kept` are ratios of these means.

    Args:
        frame: The columns of `to_frame`, without `ndcg_kept` and `recall_kept`.
        model: Name of the model, for titles.
        document_size: Size of the documents in both stages; `"same size"` if each stage has its own.

    Raises:
        ValueError: Columns are missing or unknown, there are no rows, or a row is repeated.

    Example:
        >>> row = {"task": "T", "split": "test", "subset": "default", "second": "6L-384d", "k": 10, "queries": 50}
        >>> row |= {"documents": 1000, "first_bytes": 256, "second_bytes": 1536, "recall": 0.5, "recall_alone": 0.5}
        >>> row |= dict.fromkeys(("first_multiply_adds", "second_multiply_adds", "alone_multiply_adds"), 1)
        >>> row |= {"first": "6L-64d", "ndcg_alone": 0.4}
        >>> scores = [(20, 0.36, 0.7), (50, 0.4, 0.9)]
        >>> rows = [row | {"k1": k1, "ndcg": ndcg, "recall_at_k1": recall} for k1, ndcg, recall in scores]
        >>> print(FunnelResult(pd.DataFrame(rows)))
        T: nDCG@10 kept of 6L-384d alone, which has 40.00; percent
        |  first | bytes | k1=20 |  k1=50 |
        | -----: | ----: | ----: | -----: |
        | 6L-64d |   256 | 90.00 | 100.00 |
    """

    frame: pd.DataFrame
    model: str = ""
    document_size: str = AXES["documents"]

    _file = TableFile("FunnelResult", _KINDS)

    def __post_init__(self) -> None:
        if set(self.frame.columns) != set(_COLUMNS):
            raise ValueError(f"A FunnelResult has the columns {_COLUMNS}, got {list(self.frame.columns)}.")
        if self.frame.empty or self.frame.duplicated(_KEYS).any():
            raise ValueError("A FunnelResult needs at least one row, and each task, split, subset and funnel only once.")
        object.__setattr__(self, "frame", self.frame[_COLUMNS].reset_index(drop=True))  # the class is frozen

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks, in the order in which they were scored."""
        return list(self.frame["task"].unique())

    @property
    def firsts(self) -> list[str]:
        """Sizes that make shortlists, by bytes of a vector, ascending."""
        return list(self.frame["first"].unique())

    @property
    def seconds(self) -> list[str]:
        """Sizes that re-rank shortlists, by bytes of a vector, then by layers, ascending."""
        of_second = dict(zip(self.frame["second"], self.frame["second_bytes"], strict=True))
        return sorted(of_second, key=lambda name: (of_second[name], Size.parse(name.split()[0])))

    @property
    def shortlists(self) -> list[int]:
        """Lengths of the shortlists, ascending."""
        return sorted(map(int, self.frame["k1"].unique()))

    def to_frame(self) -> pd.DataFrame:
        """One row for each task, split, subset, pair of sizes and length of the shortlist.

        Returns:
            `first` and `second` are sizes, with the precision unless it is float32. `recall_at_k1` is the recall of the
            shortlist; `ndcg` and `recall` are those of the final `k` documents; `ndcg_alone` and `recall_alone` those of a
            search with the second size alone; `ndcg_kept` and `recall_kept` the ratios, NaN where the second size alone
            scores 0. `first_bytes` and `second_bytes` are stored per document; `first_multiply_adds`,
            `second_multiply_adds` and `alone_multiply_adds` are computed per query.
        """
        return _with_kept(self.frame)

    def summary(self, task: str | None = None) -> pd.DataFrame:
        """One row for each pair of sizes and length of the shortlist; the columns of `to_frame`.

        Args:
            task: Name of one task; None for the mean over tasks.
        """
        _check("task", task or self.tasks[0], self.tasks)
        rows = self.frame if task is None else self.frame[self.frame["task"] == task]
        by_task = rows.groupby(["task", *_FUNNEL], sort=False)[_MEASURED].mean()
        return _with_kept(by_task.groupby(level=_FUNNEL, sort=False).mean().reset_index())

    def pivot(self, k1: int | None = None, value: str = "ndcg_kept", task: str | None = None) -> pd.DataFrame:
        """First sizes (rows) by second sizes (columns); NaN where the first size is not cheaper than the second.

        Args:
            k1: Length of the shortlist; None for the longest.
            value: A numeric column of `summary`.
            task: As for `summary`.
        """
        length = self.shortlists[-1] if k1 is None else k1
        _check("shortlist of length", length, self.shortlists)
        summary = self.summary(task)
        _check("value", value, list(summary.columns.drop(["first", "second"])))
        table = summary[summary["k1"] == length].pivot(index="first", columns="second", values=value)
        return table.reindex(index=self.firsts, columns=self.seconds)

    def by_shortlist(self, second: str | None = None, value: str = "ndcg_kept", task: str | None = None) -> pd.DataFrame:
        """First sizes (rows) by length of the shortlist (columns), for one second size.

        Args:
            second: One of `seconds`; None for the largest.
            value: `"ndcg_kept"`, `"recall_kept"`, `"recall_at_k1"`, `"ndcg"` or `"recall"`.
            task: As for `summary`.
        """
        chosen = self.seconds[-1] if second is None else second
        _check("second size", chosen, self.seconds)
        _check("value", value, list(_SHOWN))
        summary = self.summary(task)
        table = summary[summary["second"] == chosen].pivot(index="first", columns="k1", values=value)
        return table.reindex([first for first in self.firsts if first in table.index])

    def to_markdown(self, second: str | None = None, value: str = "ndcg_kept", task: str | None = None) -> str:
        """`by_shortlist` as a Markdown table, in percent, with the bytes of a document at the first size."""
        table, of_first = self.by_shortlist(second, value, task), self._bytes()
        head = ["first", "bytes", *(f"k1={k1}" for k1 in table.columns)]
        texts = (table * 100).map("{:.2f}".format)
        return text_tables.aligned(head, [[first, str(of_first[first]), *shares] for first, *shares in texts.itertuples()])

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        title: str | None = None,
        *,
        second: str | None = None,
        value: str = "ndcg_kept",
        task: str | None = None,
    ) -> Figure:
        """Plot `value` against the length of the shortlist, with a line for each first size.

        Args:
            path: File to save the figure to, as `.png`, `.svg` or `.pdf`; None to only return it.
            title: Title; None for the names of the model and the task.
            second: As for `by_shortlist`.
            value: As for `by_shortlist`.
            task: As for `by_shortlist`.
        """
        from st_matryoshka2d.plots.funnel_curves import funnel_curves
        from st_matryoshka2d.plots.saving import saved

        shares = self.by_shortlist(second, value, task) * 100
        title = title if title is not None else pivots.headed(self.model, self._subject([task] if task else self.tasks))
        words = {"title": title, "label": f"{self._in_words(second, value)} (%)"}
        return saved(path, lambda: funnel_curves(shares, self._bytes(), **words))

    def __str__(self) -> str:
        alone = self.summary().query("second == @self.seconds[-1]")["ndcg_alone"].iloc[0]
        words = self._in_words(None, "ndcg_kept")
        return f"{self._subject(self.tasks)}: {words}, which has {100 * alone:.2f}; percent\n{self.to_markdown()}"

    __repr__ = __str__

    def _subject(self, tasks: Sequence[str]) -> str:
        return ", ".join([pivots.subject(tasks), *axis_labels({**AXES, "documents": self.document_size})])

    def _in_words(self, second: str | None, value: str) -> str:
        return _SHOWN[value].format(k=self.frame["k"].iloc[0], second=second or self.seconds[-1])

    def _bytes(self) -> dict[str, int]:
        return dict(zip(self.frame["first"], self.frame["first_bytes"], strict=True))


def _check(what: str, given: object, known: Sequence[object]) -> None:
    if given not in known:
        raise ValueError(f"There is no {what} {given!r} in this result, only {', '.join(map(str, known))}.")


def _with_kept(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns `ndcg_kept` and `recall_kept`; NaN where the second size alone scores 0."""
    alone = rows[["ndcg_alone", "recall_alone"]].replace(0, np.nan)
    return rows.assign(ndcg_kept=rows["ndcg"] / alone["ndcg_alone"], recall_kept=rows["recall"] / alone["recall_alone"])
