"""Reports: the sizes of grids as one page that opens offline."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.atomic import check_writable_file, replace_file
from st_matryoshka2d.grid import pivots
from st_matryoshka2d.grid.costs import name_of, vector_bytes
from st_matryoshka2d.grid.grid_data import Scores
from st_matryoshka2d.grid.grid_tables import AXES
from st_matryoshka2d.grid.limits import Limit, limits_of, positive
from st_matryoshka2d.grid.pareto_front import on_front
from st_matryoshka2d.grid.recommend import Candidates, candidates, share_text
from st_matryoshka2d.report.page import page
from st_matryoshka2d.sizes import Size

_SHARES = range(50, 101)  # percent of the score to keep: the steps of a slider
_MEANINGS = {
    "ndcg_at_10": "how high the right documents rank among the first ten; 100 % if all of them come first",
    "cosine_spearman": "how far similarities order pairs as people do",
}
_TIMED = {"milliseconds_per_text": "milliseconds per text", "megabytes": "megabytes of a file"}


def write_report(
    grid: Scores,
    path: str | os.PathLike[str],
    beside: Sequence[Scores],
    title: str | None,
    min_score: float,
    max_ms: float | None,
    max_bytes: float | None,
    max_megabytes: float | None,
    reference: object,
) -> None:
    """Implement `GridResult.report`."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"A report is a page: its file must end with .html, got {str(path)!r}.")
    check_writable_file(path)
    grids = [grid, *beside]
    _check_alike(grids)
    subject, metric = pivots.subject(grid.tasks), pivots.metric_name(grid.frame)
    shown = {cost: title for cost, title in _TIMED.items() if all(_has(scores, cost) for scores in grids)}
    shown["bytes"] = "bytes per vector"
    columns = pd.concat([scores.frame for scores in grids])[["dim", "precision"]].drop_duplicates()
    vectors = {float(vector_bytes(*row)) for row in columns.itertuples(index=False)}
    most = max(vectors) if max_bytes is None else positive(max_bytes, "max_bytes", "512, bytes")
    stops = sorted({*vectors, most})
    limits_of(grid, min_score, max_ms, most, metric, max_megabytes)  # refuses what is no limit
    shares = sorted({*map(float, _SHARES), round(100 * min_score, 6)})
    panels = [_panel(scores, reference, (max_ms, max_megabytes), (stops, shares), shown) for scores in grids]
    names = " and ".join(filter(None, (panel["name"] for panel in panels)))
    models = " and ".join(scores.model or "A model" for scores in grids)
    wholes = " and ".join(dict.fromkeys(_in_words(scores.full_size) for scores in grids if scores.full_size))
    documents = pivots.shown(grid.frame)["documents"]
    words = {
        "title": title if title is not None else f"{names}: {subject}".removeprefix(": "),
        "about": f"{models}{f' ({wholes})' if wholes else ''}: {metric} on {subject}, {date.today():%d %B %Y}.",
        "meaning": f"{metric} says {_MEANINGS[metric]}." if metric in _MEANINGS else "",
        "sides": "" if documents == AXES["documents"] else f"Sizes are those of queries; all documents are at {documents}.",
        "metric": f"{metric}, %",
        "shares": [f"{share:g}" for share in shares],
        "share": shares.index(round(100 * min_score, 6)),
        "stops": [f"{stop:,.6g}" for stop in stops],
        "start": stops.index(most),
    }
    replace_file(path, lambda part: part.write_text(page(panels, shown, **words), encoding="utf-8"))


def _in_words(size: str) -> str:
    """Write the size of a whole model for readers who have not met such names."""
    whole = Size.parse(size)
    return f"{whole.num_layers} layers, {whole.dim} numbers in a vector"


def _check_alike(grids: Sequence[Scores]) -> None:
    """Refuse grids that cannot stand side by side."""
    tasks = {", ".join(sorted(scores.tasks)) for scores in grids}
    if len(tasks) > 1:
        raise UsageError(
            f"The grids have different tasks, {' and '.join(sorted(tasks))}, so means over them "
            "cannot be compared. Show those that all have: `grid.at(tasks=...)`."
        )
    names = [pivots.called(scores.model) for scores in grids]
    if len(grids) > 1 and len({*names} - {""}) < len(grids):
        raise UsageError(
            f"Grids side by side need different names, got {', '.join(map(repr, names))}. Name "
            "them with `grid.named('after training')`."
        )


def _has(grid: Scores, cost: str) -> bool:
    """Tell whether a grid has this cost, which comes with times."""
    return grid.latency is not None and cost in grid.latency


def _panel(
    grid: Scores,
    reference: object,
    most: tuple[float | None, float | None],
    sliders: tuple[list[float], list[float]],
    shown: Iterable[str],
) -> dict[str, Any]:
    """Return the sizes of a grid, with what `recommend` says at each step of the sliders."""
    sizes = candidates(grid, None, reference)
    table = sizes.table
    fronts = {cost: table[on_front(table, [cost])].sort_values([cost, "score"]) for cost in shown}
    answers: dict[tuple[str, str], int] = {}
    (max_ms, max_megabytes), (stops, shares) = most, sliders
    steps: list[list[int]] = [[] for _ in stops]
    for (stop, row), share in product(zip(stops, steps, strict=True), shares):
        limits = limits_of(grid, share / 100, max_ms, stop, sizes.measure, max_megabytes)
        row.append(answers.setdefault(_answer(sizes, limits), len(answers)))
    return {
        "name": pivots.called(grid.model),
        "examples": sum(pivots.example_counts(grid.items).values()),
        "sizes": [row.to_dict() | {"words": _words(row, sizes)} for _, row in table.iterrows()],
        "fronts": {cost: front.index.tolist() for cost, front in fronts.items()},
        "answers": [*answers],
        "steps": steps,
        "notes": [sizes.told] if sizes.told else [],
    }


def _answer(sizes: Candidates, limits: Sequence[Limit]) -> tuple[str, str]:
    """Return the name of the proposed size and what `recommend` says; no name if it refuses."""
    try:
        best = sizes.within(limits)
    except ValueError as error:
        return "", str(error)
    return _name(best.frame.iloc[0]), str(best)


def _name(row: pd.Series[Any]) -> str:
    """Name a size; the page says at its top at which one all documents are."""
    return name_of(row).partition(" for queries")[0]


def _words(row: pd.Series[Any], sizes: Candidates) -> dict[str, str]:
    """Write what is known of a size, under the names of its numbers."""
    words = {"size": _name(row), "score": f"{100 * row['score']:.2f} %"}
    words[f"share of {sizes.share_of}"] = share_text(row, sizes.examples)
    if pd.notna(row["milliseconds_per_text"]):
        words[_TIMED["milliseconds_per_text"]] = f"{row['milliseconds_per_text']:.3g}"
    if pd.notna(row["megabytes"]):
        words[_TIMED["megabytes"]] = f"{row['megabytes']:.1f}"
    return {**words, "bytes per vector": f"{row['bytes']:,}"}
