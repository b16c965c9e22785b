"""The limits that a size has to meet, and what the sizes of a grid miss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.grid.costs import HOW_TO_TIME, name_of
from st_matryoshka2d.grid.grid_data import Scores


@dataclass(frozen=True)
class Limit:
    """A bound on one column of the table of costs: a minimum for `relative`, a maximum for the others."""

    name: str
    column: str
    bound: float

    def shown(self, value: float) -> str:
        """Write a value with its unit."""
        if self.column == "relative":
            return f"{value * 100:.4g} %"
        units = {"milliseconds_per_text": ".4g ms", "megabytes": ".4g MB"}
        form, _, unit = units.get(self.column, ".10g bytes").partition(" ")
        return f"{value:{form}} {unit}"

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return self._of(self.bound)

    def _of(self, bound: float) -> str:
        return f"{'at least' if self.column == 'relative' else 'at most'} {self.shown(bound)}"

    def missed(self, row: pd.Series[Any]) -> str:
        """Say how a size misses the bound; empty if it does not. A share has to reach it with its lower end, if known."""
        value = row[self.column]
        if self.column == "relative" and row["relative_low"] < self.bound <= value:
            return f"{self.name} {self.shown(value)}, perhaps only {self.shown(row['relative_low'])}, {self.wanted} wanted"
        met = value >= self.bound if self.column == "relative" else value <= self.bound
        return "" if met else f"{self.name} {self.shown(value)}, {self.wanted} wanted"

    def relaxed(self, table: pd.DataFrame) -> str:
        """Write the tightest bound that a size meets, and name that size."""
        if self.column != "relative":
            row = table.sort_values(self.column, kind="stable").iloc[0]
            return f"{self.name} {self._of(row[self.column])} ({name_of(row)})"
        sure = table["relative_low"].fillna(table["relative"])
        row = table.loc[sure == sure.max()].iloc[0]
        # rounded down, so that a user may ask for it
        return f"{self.name} {self._of(math.floor(sure.max() * 1000) / 1000)} ({name_of(row)})"


def limits_of(
    grid: Scores,
    min_score: float | None,
    max_ms: float | None,
    max_bytes: float | None,
    measure: str,
    max_megabytes: float | None = None,
) -> list[Limit]:
    """Check the limits that a user gave; `measure` names what the grid has of each size."""
    limits = []
    if min_score is not None:
        share = positive(min_score, "min_score", "0.97, which is 97 % of the largest size's score")
        if share >= 1.5:  # a cut may be a little better than the full size
            raise UsageError(f"min_score is a fraction of the largest size's score, such as 0.97 for 97 %; got {min_score}.")
        limits.append(Limit(f"share of the {measure}", "relative", share))
    if max_ms is not None:
        require_times(grid, "max_ms")
        limits.append(Limit("time", "milliseconds_per_text", positive(max_ms, "max_ms", "2.5, milliseconds for a text")))
    if max_bytes is not None:
        limits.append(Limit("vector", "bytes", positive(max_bytes, "max_bytes", "512, bytes of a vector")))
    if max_megabytes is not None:
        if grid.latency is None or "megabytes" not in grid.latency:
            raise UsageError(f"max_megabytes needs the bytes of files, which {_this(grid)} lacks: {HOW_TO_TIME}.")
        most = positive(max_megabytes, "max_megabytes", "60, millions of bytes of a file")
        limits.append(Limit("file", "megabytes", most))
    if not limits:
        raise UsageError("There is no limit to choose by. Pass min_score, max_ms, max_bytes or max_megabytes.")
    return limits


def require_times(grid: Scores, name: str) -> None:
    """Refuse a limit on time if there are no times."""
    if grid.latency is None:
        raise UsageError(f"{name} needs the times of the model, which {_this(grid)} lacks: {HOW_TO_TIME}.")


def _this(grid: Scores) -> str:
    return f"the grid of {grid.model}" if grid.model else "this grid"


def positive(value: object, name: str, example: str) -> float:
    """Refuse what is not a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageTypeError(f"{name} must be a number such as {example}; got {value!r} ({type(value).__name__}).")
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise UsageError(f"{name} must be a number above 0 such as {example}; got {value}. None sets no limit.")
    return number


def met(table: pd.DataFrame, limits: Sequence[Limit]) -> NDArray[np.bool_]:
    """Mark the sizes that have a score and surely meet all limits: with the lower ends of shares, where they are known."""
    marks = table["score"].notna()
    for limit in limits:
        values = table[limit.column]
        if limit.column != "relative":
            marks &= values <= limit.bound
        else:
            marks &= table["relative_low"].fillna(values) >= limit.bound
    return marks.to_numpy()


def refused(table: pd.DataFrame, limits: Sequence[Limit]) -> pd.Series[str]:
    """Describe the limits that each size misses; empty if it meets all."""
    missed = ["; ".join(filter(None, (limit.missed(row) for limit in limits))) for _, row in table.iterrows()]
    return pd.Series(missed, table.index)


def what_there_is(table: pd.DataFrame, limits: Sequence[Limit]) -> str:
    """Describe the limits, and to what one of them must be relaxed; if one is not enough, the best of each."""
    wanted = ", ".join(f"{limit.name} {limit.wanted}" for limit in limits)
    near = []
    for limit in limits:
        others = [other for other in limits if other is not limit]
        if (rows := table[met(table, others)]).size:
            near.append(limit.relaxed(rows))
    if near:
        return f"{wanted}. Relax {'one' if len(limits) > 1 else 'it'}: {', or '.join(near)}."
    return f"{wanted}. Relax several; the best of any size: {', '.join(limit.relaxed(table) for limit in limits)}."
