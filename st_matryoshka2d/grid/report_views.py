"""Reports: the sizes of grids as one page that opens without a network."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from st_matryoshka2d.files.atomic import check_writable_file, replace_file
from st_matryoshka2d.grid import pivots
from st_matryoshka2d.grid.agreement import AGREEMENT, measure_of
from st_matryoshka2d.grid.costs import costs, name_of, reference_name
from st_matryoshka2d.grid.grid_data import Scores
from st_matryoshka2d.grid.grid_tables import AXES, axis_labels
from st_matryoshka2d.grid.pareto_front import on_front, time_column
from st_matryoshka2d.grid.recommend import NO_SCORE, in_order, required_full
from st_matryoshka2d.grid.shares import MissingExamplesError, add_intervals
from st_matryoshka2d.report.page import page
from st_matryoshka2d.report.views import TaskSizes, View

_CELLS = ["num_layers", "dim", "precision"]


def write_report(grid: Scores, path: str | os.PathLike[str], beside: Sequence[Scores], title: str | None) -> None:
    """Implement `GridResult.report`."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"A report is a page: its file must end with .html, got {os.fspath(path)!r}.")
    check_writable_file(path)
    grids = _checked(grid, beside)
    columns = {time_column(one) for one in grids}
    time = columns.pop() if len(columns) == 1 else "num_layers"
    views = [view for one in grids for view in _views(one, time)]
    heading = title if title is not None else _heading(grids)
    text = page(heading, views, time)
    replace_file(path, lambda part: part.write_text(text, encoding="utf-8"))


def _checked(grid: Scores, beside: Sequence[Scores]) -> list[Scores]:
    """Refuse grids that cannot stand side by side."""
    grids = [grid, *([beside] if isinstance(beside, Scores) else beside)]
    for one in grids:
        if not isinstance(one, Scores):
            raise TypeError(f"beside must be grids, such as [grid], got a {type(one).__name__}.")
        if set(one.tasks) != set(grid.tasks):
            raise ValueError(
                f"The grids have different tasks, {', '.join(grid.tasks)} and {', '.join(one.tasks)}; means over them "
                "cannot be compared. Show the tasks that both have: `grid.at(tasks=...)`."
            )
    names = [_short_name(one) for one in grids]
    if len(grids) > 1 and len({*names} - {""}) < len(names):
        raise ValueError(
            f"Grids side by side need different names, got {', '.join(map(repr, names))}. Name them, with "
            "`grid.named('after training')` or --names of the command."
        )
    return grids


def _heading(grids: Sequence[Scores]) -> str:
    tasks = grids[0].tasks
    subject = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
    names = " and ".join(filter(None, map(_short_name, grids)))
    return f"{names}: {subject}" if names else subject


def _short_name(grid: Scores) -> str:
    return pivots.called(grid.model)


def _views(grid: Scores, time: str) -> Iterator[View]:
    """Return a view for each size of documents."""
    truncation = pivots.default_value(grid.frame, "truncation")
    others = [name for name in grid.truncations if name != truncation]
    hidden = [f"The grid also has {', '.join(others)}, which are not shown."] if others else []
    for documents in grid.document_sizes:
        one = grid.at(truncation=truncation, documents=documents)
        labels = axis_labels({**AXES, "documents": documents, "truncation": truncation})
        if documents == AXES["documents"] and len(grid.document_sizes) > 1:
            labels.append("documents at the same size")
        name = ", ".join(filter(None, [_short_name(grid), *labels]))
        series = {AXES["precision"]: name}
        if one.precisions != [AXES["precision"]]:
            series = {precision: f"{name} {precision}".strip() for precision in one.precisions}
        tasks = [None, *one.tasks] if len(one.tasks) > 1 else [None]
        sizes = {pivots.subject([task] if task else one.tasks): _sizes(one, task, time, series) for task in tasks}
        yield View(name, list(series.values()), sizes, hidden + pivots.examples_note(one.items))


def _sizes(grid: Scores, task: str | None, time: str, series: Mapping[str, str]) -> TaskSizes:
    """Return the sizes of a grid as `recommend` ranks them, with what it says about them."""
    table = costs(grid.frame, grid.latency, task).assign(relative_low=np.nan, relative_high=np.nan)
    measure = measure_of(grid.frame, task)
    notes = [NO_SCORE] if measure == AGREEMENT else []
    largest, share_of, examples = "", "", 0
    try:
        full = required_full(table)
        largest, share_of = name_of(full), f"the {measure} of {reference_name(full, grid.full_size)}"
        examples = add_intervals(table, grid, _CELLS, task, (grid, full))
    except MissingExamplesError as missing:
        if measure != AGREEMENT:
            notes.append(
                f"No interval is known for the shares of the score: the grid has no scores of single examples of {missing}. "
                "The choice is by the scores alone, which chance may have made."
            )
    except ValueError as error:
        largest, table["relative"] = "", np.nan
        notes.append(f"No size is recommended. {error}")
    table = in_order(table, [time_column(grid), "bytes", "score"])
    fronts = {"front_time": on_front(table, [time]), "front_bytes": on_front(table, ["bytes"])}
    names = [name_of(row) for row in table.itertuples()]
    table = table.assign(**fronts, name=names, series=table["precision"].map(series))
    return TaskSizes(table, pivots.metric_name(grid.frame, task), largest, share_of, examples, notes)
