"""Choose the size to ship: the cheapest one that is good enough and within the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import pandas as pd

from st_matryoshka2d.evaluation.front import time_column
from st_matryoshka2d.evaluation.pivots import HOW_TO_TIME, costs, document_size, full_row, name_of, reference_name
from st_matryoshka2d.evaluation.scores import Scores
from st_matryoshka2d.sizes import Size


@dataclass(frozen=True, eq=False, repr=False)
class Recommendation:
    """The size to ship. Printing it shows its score and its costs, beside the costs of the largest size.

    Args:
        frame: All candidates as in `to_frame`, the chosen one first.
        full: The row of the largest size.
        share_of: The score that `relative` refers to, in words.

    Example:
        >>> from st_matryoshka2d import GridResult
        >>> row = {"task": "T", "split": "test", "subset": "default", "metric": "ndcg_at_10", "is_main": True}
        >>> scores = {(3, 128): 0.60, (6, 128): 0.79, (6, 384): 0.84}
        >>> rows = [row | {"num_layers": n, "dim": d, "score": score} for (n, d), score in scores.items()]
        >>> best = GridResult(pd.DataFrame(rows)).recommend(0.9, max_bytes=1000)
        >>> print(best)
        6L-128d: 94.0 % of the score of 6L-384d (the largest of the grid), 6 layers, 512 bytes a vector instead of 1536
        >>> best.to_frame()["refused"].tolist()
        ['', 'score 71.43 %, at least 90 % wanted', 'vector 1536 bytes, at most 1000 bytes wanted']
    """

    frame: pd.DataFrame
    full: pd.Series[Any]
    share_of: str

    @property
    def size(self) -> Size:
        """The chosen size."""
        return Size(*self.frame[["num_layers", "dim"]].iloc[0])

    @property
    def documents(self) -> Size:
        """The chosen document size; equals `size` unless `queries_per_document` was given."""
        return document_size(self.frame.iloc[0])

    @property
    def precision(self) -> str:
        """The chosen precision."""
        return str(self.frame["precision"].iloc[0])

    def to_frame(self) -> pd.DataFrame:
        """Every size of the grid, best first, with its score, its costs, and the limits that it missed in `refused`."""
        return self.frame.copy()

    def __str__(self) -> str:
        chosen = self.frame.iloc[0]
        timed = math.isfinite(chosen["milliseconds_per_text"])
        time = ("milliseconds_per_text", ".3g", "ms a text") if timed else ("num_layers", "d", "layers")
        if "milliseconds_in_all" in self.frame:
            time = ("milliseconds_in_all", ".3g", "ms a document and its queries")
        cost = f"{self._instead(*time)}, {self._instead('bytes', 'd', 'bytes a vector')}"
        return f"{name_of(chosen)}: {chosen['relative'] * 100:.1f} % of {self.share_of}, {cost}"

    __repr__ = __str__

    def _instead(self, column: str, form: str, unit: str) -> str:
        here, there = format(self.frame[column].iloc[0], form), format(self.full[column], form)
        return f"{here} {unit}" if here == there else f"{here} {unit} instead of {there}"


@dataclass(frozen=True)
class _Limit:
    """A bound on one column of the table of costs: a minimum for `relative`, a maximum for the others."""

    name: str
    column: str
    bound: float

    def shown(self, value: float) -> str:
        if self.column == "relative":
            return f"{value * 100:.4g} %"
        return f"{value:.4g} ms" if self.column == "milliseconds_per_text" else f"{value:.10g} bytes"

    @property
    def wanted(self) -> str:
        return f"{'at least' if self.column == 'relative' else 'at most'} {self.shown(self.bound)}"

    def missed(self, row: pd.Series[Any]) -> str:
        value = row[self.column]
        met = value >= self.bound if self.column == "relative" else value <= self.bound
        return "" if met else f"{self.name} {self.shown(value)}, {self.wanted} wanted"

    def best(self, table: pd.DataFrame) -> str:
        row = table.sort_values(self.column, ascending=self.column != "relative", kind="stable").iloc[0]
        return f"{self.name} {self.shown(row[self.column])} ({name_of(row)})"


def recommend(
    grid: Scores,
    min_score: float | None,
    max_ms: float | None,
    max_bytes: float | None,
    task: str | None,
    reference: object,
    queries_per_document: float | None,
) -> Recommendation:
    """Implement `GridResult.recommend`."""
    limits = _limits(grid, min_score, max_ms, max_bytes)
    if queries_per_document is not None:
        _positive(queries_per_document, "queries_per_document", "20, queries over the life of a document")
        _require_times(grid, "queries_per_document")
    table = costs(grid.frame, grid.latency, task, queries_per_document)
    if queries_per_document is not None and (untimed := table[table["milliseconds_in_all"].isna()]).size:
        depth = document_size(untimed.iloc[0]).num_layers
        raise ValueError(f"The grid has no times for documents of {depth} layers: {HOW_TO_TIME}.")
    full = _required_full(table)
    share_of = f"the score of {reference_name(full, grid.full_size)}"
    if reference is not None:
        full_score, share_of = _reference(reference, grid, task)
        table["relative"] = table["score"] / full_score
    table["refused"] = _refused(table, limits).where(table["score"].notna(), "no score")
    if (table["refused"] != "").all():
        there_is = _what_there_is(table.dropna(subset="score"), limits)
        raise ValueError(f"No size of {len(table)} meets every limit: {there_is}")
    cheap = [time_column(grid) if queries_per_document is None else "milliseconds_in_all", "bytes"]
    order = ["score", *cheap] if min_score is None else [*cheap, "score"]
    ranked = table.sort_values([*order, "dim"], ascending=[*(name != "score" for name in order), True])
    fits_first = ranked.sort_values("refused", key=lambda refused: refused != "", kind="stable", ignore_index=True)
    return Recommendation(fits_first, full, share_of)


def _limits(grid: Scores, min_score: float | None, max_ms: float | None, max_bytes: float | None) -> list[_Limit]:
    limits = []
    if min_score is not None:
        share = _positive(min_score, "min_score", "0.97, which is 97 % of the largest size's score")
        if share >= 1.5:  # a cut may be a little better than the full size
            raise ValueError(f"min_score is a fraction of the largest size's score, such as 0.97 for 97 %; got {min_score}.")
        limits.append(_Limit("score", "relative", share))
    if max_ms is not None:
        _require_times(grid, "max_ms")
        limits.append(_Limit("time", "milliseconds_per_text", _positive(max_ms, "max_ms", "2.5, milliseconds for a text")))
    if max_bytes is not None:
        limits.append(_Limit("vector", "bytes", _positive(max_bytes, "max_bytes", "512, bytes of a vector")))
    if not limits:
        raise ValueError("There is no limit to choose by. Pass min_score, max_ms or max_bytes.")
    return limits


def _require_times(grid: Scores, name: str) -> None:
    if grid.latency is None:
        raise ValueError(f"{name} needs the times of the model, which this grid lacks: {HOW_TO_TIME}.")


def _positive(value: object, name: str, example: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number such as {example}; got {value!r} ({type(value).__name__}).")
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a number above 0 such as {example}; got {value}. None sets no limit.")
    return number


def _required_full(table: pd.DataFrame) -> pd.Series[Any]:
    full, compared = full_row(table), "Scores are relative to the largest size, but"
    if full is None:
        raise ValueError(f"{compared} {Size(*table[['num_layers', 'dim']].max())} was not scored. Score it as well.")
    if math.isnan(full["score"]):
        raise ValueError(
            f"{compared} {name_of(full)} has no score on some task. Choose one task with `task=`, or score the other "
            "tasks at that size and merge."
        )
    if not full["score"] > 0:
        raise ValueError(f"{compared} {name_of(full)} scores {full['score']:g}, and relative scores need a positive one.")
    return full


def _reference(reference: object, grid: Scores, task: str | None) -> tuple[float, str]:
    """Return the score of the reference's largest size, and its name."""
    if not isinstance(reference, Scores):
        raise TypeError(f"reference must be a grid, got a {type(reference).__name__}.")
    if task is None and set(reference.tasks) != set(grid.tasks):
        raise ValueError(
            f"The reference was scored on {', '.join(reference.tasks)}, the grid on {', '.join(grid.tasks)}; means over "
            "different tasks cannot be compared. Choose one task with `task=`, or score both on the same tasks."
        )
    full = _required_full(costs(reference.frame, reference.latency, task))
    return full["score"], f"the reference's score at {reference_name(full, reference.full_size)}"


def _refused(table: pd.DataFrame, limits: Sequence[_Limit]) -> pd.Series[str]:
    """Describe the limits that each size misses; empty if it meets all."""
    missed = ["; ".join(filter(None, (limit.missed(row) for limit in limits))) for _, row in table.iterrows()]
    return pd.Series(missed, table.index)


def _what_there_is(table: pd.DataFrame, limits: Sequence[_Limit]) -> str:
    """Describe the limits, and the best value of each over all sizes and over sizes that meet the other limits."""
    text = ", ".join(f"{limit.name} {limit.wanted}" for limit in limits)
    text += f". The best of any size: {', '.join(limit.best(table) for limit in limits)}."
    near = []
    for limit in limits if len(limits) > 1 else ():
        others = [other for other in limits if other is not limit]
        if (rows := table[_refused(table, others) == ""]).size:
            near.append(limit.best(rows))
    return f"{text} The best that meets all other limits: {' or '.join(near)}." if near else text
