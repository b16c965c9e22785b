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
from st_matryoshka2d.grid.limits import Limit, limits_of, positive
from st_matryoshka2d.grid.pareto_front import on_front
from st_matryoshka2d.grid.recommend import Candidates, candidates, share_text
from st_matryoshka2d.report.page import SHARES, page

_TIMED = {"milliseconds_per_text": "milliseconds per text", "megabytes": "megabytes of a checkpoint"}


def write_report(
    grid: Scores,
    path: str | os.PathLike[str],
    beside: Sequence[Scores],
    title: str | None,
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
    shown = {cost: title for cost, title in _TIMED.items() if all(_has(scores, cost) for scores in grids)}
    shown["bytes"] = "bytes per vector"
    columns = pd.concat([scores.frame for scores in grids])[["dim", "precision"]].drop_duplicates()
    vectors = {float(vector_bytes(*row)) for row in columns.itertuples(index=False)}
    most = max(vectors) if max_bytes is None else positive(max_bytes, "max_bytes", "512, bytes")
    stops = sorted({*vectors, most})
    panels = [_panel(scores, reference, (max_ms, max_megabytes), stops, shown) for scores in grids]
    subject, metric = pivots.subject(grid.tasks), pivots.metric_name(grid.frame)
    names = " and ".join(filter(None, (panel["name"] for panel in panels)))
    models = " and ".join(f"{scores.model or 'A model'} {scores.full_size}".strip() for scores in grids)
    words = {
        "title": title if title is not None else f"{names}: {subject}".removeprefix(": "),
        "about": f"{models}: {metric} on {subject}, {date.today():%d %B %Y}.",
        "metric": f"{metric}, %",
        "stops": [f"{stop:,.6g}" for stop in stops],
        "start": stops.index(most),
    }
    replace_file(path, lambda part: part.write_text(page(panels, shown, **words), encoding="utf-8"))


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
    grid: Scores, reference: object, most: tuple[float | None, float | None], stops: list[float], shown: Iterable[str]
) -> dict[str, Any]:
    """Return the sizes of a grid, with what `recommend` says at each step of the sliders."""
    sizes = candidates(grid, None, reference)
    table = sizes.table
    fronts = {cost: table[on_front(table, [cost])].sort_values([cost, "score"]) for cost in shown}
    answers: dict[tuple[str, str], int] = {}
    steps: list[list[int]] = [[] for _ in stops]
    max_ms, max_megabytes = most
    for (stop, row), share in product(zip(stops, steps, strict=True), SHARES):
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
    return name_of(best.frame.iloc[0]), str(best)


def _words(row: pd.Series[Any], sizes: Candidates) -> dict[str, str]:
    """Write what is known of a size, under the names of its numbers."""
    words = {"size": name_of(row), "score": f"{100 * row['score']:.2f} %"}
    words[f"share of {sizes.share_of}"] = share_text(row, sizes.examples)
    if pd.notna(row["milliseconds_per_text"]):
        words[_TIMED["milliseconds_per_text"]] = f"{row['milliseconds_per_text']:.3g}"
    if pd.notna(row["megabytes"]):
        words[_TIMED["megabytes"]] = f"{row['megabytes']:.1f}"
    return {**words, "bytes per vector": f"{row['bytes']:,}"}
