"""Choose the size to ship: the cheapest one that is good enough and within the budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from st_matryoshka2d.errors import DataWarning, UsageError, UsageTypeError, warn
from st_matryoshka2d.grid.costs import HOW_TO_TIME, costs, document_size, full_row, name_of, reference_name
from st_matryoshka2d.grid.from_agreement import AGREEMENT, SCORE, measure_of
from st_matryoshka2d.grid.grid_data import Scores
from st_matryoshka2d.grid.limits import Limit, limits_of, met, positive, refused, require_times, what_there_is
from st_matryoshka2d.grid.pareto_front import checked_costs, time_column
from st_matryoshka2d.grid.pivots import layers_by_depth, layers_note
from st_matryoshka2d.sizes import Size

_NO_SCORE = "Agreement is no score: with labelled data, score the size, with `evaluate` or the command `grid`."


@dataclass(frozen=True, eq=False, repr=False)
class Recommendation:
    """The size to ship. Printing it shows its score and its costs, beside the costs of the largest size.

    Args:
        frame: All candidates as in `to_frame`, the chosen one first.
        full: The row of the largest size.
        share_of: The score that `relative` refers to, in words.
        examples: The queries or pairs behind the intervals; 0 if no interval is known.
        measure: What the shares are of: `"score"`, the metric that was asked for, or `"agreement"`
            with the whole model, as `align` measured it.
        layers: Which layers the size keeps, for `truncate(model, best.size, layers=best.layers)`.

    Example:
        >>> from st_matryoshka2d import GridResult
        >>> row = {"task": "T", "split": "test", "subset": "default", "metric": "ndcg_at_10", "is_main": True}
        >>> scores = {(3, 128): 0.60, (6, 128): 0.79, (6, 384): 0.84}
        >>> rows = [row | {"num_layers": n, "dim": d, "score": score} for (n, d), score in scores.items()]
        >>> best = GridResult(pd.DataFrame(rows)).recommend(0.9, max_bytes=1000)
        >>> print(best)
        6L-128d: 94.0 % of the score of 6L-384d (the largest of the grid), 6 layers, 512 bytes per vector instead of 1536
        >>> best.to_frame()["refused"].tolist()
        ['', 'share of the score 71.43 %, at least 90 % wanted', 'vector 1536 bytes, at most 1000 bytes wanted']
    """

    frame: pd.DataFrame
    full: pd.Series[Any]
    share_of: str
    examples: int = 0
    measure: str = SCORE
    layers: str | list[int] | None = None

    @property
    def size(self) -> Size:
        """The chosen size."""
        return Size(*self.frame[["num_layers", "dim"]].iloc[0])

    @property
    def documents(self) -> Size:
        """The document size: the chosen one, or that of the grid; equals `size` where both sides have the same."""
        return document_size(self.frame.iloc[0])

    @property
    def precision(self) -> str:
        """The chosen precision."""
        return str(self.frame["precision"].iloc[0])

    def to_frame(self) -> pd.DataFrame:
        """Every size of the grid, best first, with its score, its costs, and the limits that it missed in `refused`.

        `relative` is the share of the largest size's or the reference's score; `relative_low` and
        `relative_high` are the ends of its interval, NaN if it is unknown.
        """
        return self.frame.copy()

    def __str__(self) -> str:
        chosen = self.frame.iloc[0]
        timed = math.isfinite(chosen["milliseconds_per_text"])
        time = ("milliseconds_per_text", ".3g", "ms per text") if timed else ("num_layers", "d", "layers")
        if "milliseconds_in_all" in self.frame:
            time = ("milliseconds_in_all", ".3g", "ms a document and its queries")
        cost = f"{self._instead(*time)}, {self._instead('bytes', 'd', 'bytes per vector')}"
        if math.isfinite(chosen["megabytes"]):
            cost += f", {self._instead('megabytes', '.3g', 'MB')}"
        share = share_text(chosen, self.examples)
        lines = [f"{name_of(chosen)}: {share} of {self.share_of}, {cost}"]
        if self.measure == AGREEMENT:
            lines.append(_NO_SCORE)
        if self.layers:
            lines += layers_note({self.size.num_layers: self.layers}, self.size)
        return "\n".join(lines)

    __repr__ = __str__

    def _instead(self, column: str, form: str, unit: str) -> str:
        here, there = format(self.frame[column].iloc[0], form), format(self.full[column], form)
        unit = unit.replace("layers", "layer") if here == "1" else unit
        return f"{here} {unit}" if here == there else f"{here} {unit} instead of {there}"


def recommend(
    grid: Scores,
    min_score: float | None,
    max_ms: float | None,
    max_bytes: float | None,
    max_megabytes: float | None,
    task: str | None,
    reference: object,
    queries_per_document: float | None,
    metric: str | None,
    cost: str | None,
) -> Recommendation:
    """Implement `GridResult.recommend`."""
    measure = measure_of(grid.frame, task, metric)
    limits = limits_of(grid, min_score, max_ms, max_bytes, measure, max_megabytes)
    if queries_per_document is not None:
        positive(queries_per_document, "queries_per_document", "20, queries over the life of a document")
        require_times(grid, "queries_per_document")
    sizes = candidates(grid, task, reference, queries_per_document, metric, cost)
    if sizes.told:
        warn(sizes.told, DataWarning)
    best = sizes.within(limits, best_score=min_score is None)
    why = refused(best.frame, limits).where(best.frame["score"].notna(), "no score")
    return replace(best, frame=best.frame.assign(refused=why))


@dataclass(frozen=True, eq=False)
class Candidates:
    """Every size, with its costs and the interval of its share, to choose from by any limits."""

    table: pd.DataFrame
    cheap: list[str]  # the columns that make a size cheap, the most important first
    full: pd.Series[Any]
    share_of: str
    examples: int
    measure: str
    layers: Mapping[int, str | list[int]]  # of each depth that leaves any out
    told: str  # why no interval is known; empty if all are

    def within(self, limits: Sequence[Limit], *, best_score: bool = False) -> Recommendation:
        """Choose the cheapest size, or the one of the best score, that meets all limits."""
        order = [*(["score", *self.cheap] if best_score else [*self.cheap, "score"]), "dim"]
        ranked = self.table.sort_values(order, ascending=[column != "score" for column in order])
        if self.measure == AGREEMENT:
            ranked = ranked.sort_values("dim", ascending=False, kind="stable")
        good = met(ranked, limits)
        if not good.any():
            there_is = what_there_is(self.table.dropna(subset="score"), limits)
            healed = " A healed size may keep more: `heal`." if any(limit.column == "relative" for limit in limits) else ""
            raise UsageError(f"No size of {len(ranked)} meets every limit: {there_is}{healed}")
        frame = ranked.iloc[np.argsort(~good, kind="stable")].reset_index(drop=True)
        layers = self.layers.get(int(frame["num_layers"][0]))
        return Recommendation(frame, self.full, self.share_of, self.examples, self.measure, layers)


def candidates(
    grid: Scores,
    task: str | None,
    reference: object,
    queries_per_document: float | None = None,
    metric: str | None = None,
    cost: str | None = None,
) -> Candidates:
    """Return the sizes of a grid with all that a choice needs to know."""
    # imports SciPy
    from st_matryoshka2d.grid.share_of_full import MissingExamplesError, add_intervals

    measure = measure_of(grid.frame, task, metric)
    table = costs(grid.frame, grid.latency, task, queries_per_document, metric)
    if queries_per_document is not None and (untimed := table[table["milliseconds_in_all"].isna()]).size:
        depth = document_size(untimed.iloc[0]).num_layers
        raise UsageError(f"The grid has no times for documents of {depth} layers: {HOW_TO_TIME}.")
    full = compared = _required_full(table)
    whole = grid
    share_of = f"the {measure} of {reference_name(full, grid.full_size)}"
    if reference is not None:
        whole, compared, share_of = _reference(reference, grid, task, metric, measure)
        table["relative"] = table["score"] / compared["score"]
    # which has no common scale for widths: a depth counts as at its widest
    if measure == AGREEMENT:
        table["relative"] = table.groupby("num_layers")["relative"].transform("last")
    pairs = queries_per_document is not None
    cells = ["num_layers", "dim", "precision", *(["documents"] if pairs else [])]
    examples, told = 0, ""
    try:
        examples = add_intervals(table, grid, cells, task, (whole, compared), metric)
    except MissingExamplesError as missing:
        table[["relative_low", "relative_high"]] = math.nan
        if measure != AGREEMENT:
            where = "the grid" if whole is grid else "the grid or its reference"
            told = (
                f"No interval is known for the shares of the {measure}: {where} has no scores of single examples of "
                f"{missing}. The choice is by the scores alone, which chance may have made."
            )
    cheap = ["milliseconds_in_all" if pairs else time_column(grid), "bytes"]
    if cost is not None:
        cheap = list(dict.fromkeys([*checked_costs(grid, cost), *cheap]))
    layers = layers_by_depth(grid.layers, grid.sizes, grid.full_size)
    return Candidates(table, cheap, full, share_of, examples, measure, layers, told)


def share_text(row: pd.Series[Any], examples: int) -> str:
    """Write the share of a size with its interval, if it has one."""
    low, share, high = (row[name] * 100 for name in ("relative_low", "relative", "relative_high"))
    about = f" ({low:.1f} to {high:.1f} % on {examples:,} examples)" if low < high else ""
    return f"{share:.1f} %{about}"


def _required_full(table: pd.DataFrame) -> pd.Series[Any]:
    """Return the row of the largest size; refuse one that shares cannot refer to."""
    full, compared = full_row(table), "Scores are relative to the largest size, but"
    if full is None:
        raise UsageError(f"{compared} {Size(*table[['num_layers', 'dim']].max())} was not scored. Score it as well.")
    if math.isnan(full["score"]):
        raise UsageError(
            f"{compared} {name_of(full)} has no score on some task, or one that is NaN, as where all embeddings are "
            "equal. Choose one `task`, or score the other tasks at that size and merge."
        )
    if not full["score"] > 0:
        raise UsageError(f"{compared} {name_of(full)} scores {full['score']:g}, and relative scores need a positive one.")
    return full


def _reference(
    reference: object, grid: Scores, task: str | None, metric: str | None, measure: str
) -> tuple[Scores, pd.Series[Any], str]:
    """Return the reference, the row of its largest size, and its name."""
    if not isinstance(reference, Scores):
        raise UsageTypeError(f"reference must be a grid, got a {type(reference).__name__}.")
    if task is None and set(reference.tasks) != set(grid.tasks):
        raise UsageError(
            f"The reference was scored on {', '.join(reference.tasks)}, the grid on {', '.join(grid.tasks)}; means over "
            "different tasks cannot be compared. Choose one `task`, or score both on the same tasks."
        )
    full = _required_full(costs(reference.frame, reference.latency, task, metric=metric))
    return reference, full, f"the reference's {measure} at {reference_name(full, reference.full_size)}"
