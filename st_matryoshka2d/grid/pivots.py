"""Views of a grid's tidy table, layers by dims and tasks by sizes, and the words for what they show."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.grid.grid_tables import AXES, axis_labels, narrowed
from st_matryoshka2d.grid.items import FEWEST
from st_matryoshka2d.sizes import Size

Choice: TypeAlias = "str | list[Any] | None"  # of layers: for all depths, or a list for each

_UNNAMED = "unnamed/model"  # what `model_name` returns if nothing names a model


def pivot(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> pd.DataFrame:
    """Scores by layers (rows) and dims (columns): means over the splits and subsets of a task, then over tasks."""
    return means(selected(frame, task, metric)).mean(axis=1, skipna=False).unstack("dim")


def by_task(frame: pd.DataFrame, metric: str | None = None) -> pd.DataFrame:
    """Scores by tasks (rows) and sizes (columns): means over the splits and subsets of a task."""
    rows = selected(frame, None, metric)
    by_size = means(rows)[list(rows["task"].unique())]
    names = [str(Size(int(layers), int(dim))) for layers, dim in by_size.index]
    return by_size.set_axis(pd.Index(names, name="size")).T


def shown(frame: pd.DataFrame, free: Container[str] = ()) -> dict[str, str]:
    """The plainest table of layers by dims, by its value of each axis that is not free; views show it."""
    axes = [axis for axis in AXES if axis not in free]
    tables: list[dict[Any, str]] = frame[axes].drop_duplicates().to_dict("records")
    return min(tables, key=lambda table: [table[axis] != AXES[axis] for axis in axes])


def _hidden(frame: pd.DataFrame, values: Mapping[str, str]) -> dict[str, list[str]]:
    """List the values that others than this table have, of the axes that have some."""
    others = {axis: [str(other) for other in frame[axis].unique() if other != value] for axis, value in values.items()}
    return {axis: values for axis, values in others.items() if values}


def shown_labels(frame: pd.DataFrame) -> list[str]:
    """Describe the shown values of the axes that are not at their default, or that have further values."""
    values = shown(frame)
    return axis_labels(values, _hidden(frame, values))


def unmistakable(frame: pd.DataFrame, free: Container[str] = ()) -> dict[str, str]:
    """The table to compute with, as `shown`; refuse to choose where it is not the default and others are there."""
    values = shown(frame, free)
    for axis, others in _hidden(frame, values).items():
        if values[axis] != AXES[axis]:
            several = "document sizes" if axis == "documents" else f"{axis}s"
            raise UsageError(
                f"This grid has several {several}: {', '.join([values[axis], *others])}. "
                f"Select one, for example grid.at({axis}={values[axis]!r})."
            )
    return values


def percent(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> pd.DataFrame:
    """The pivot as text: empty if a size was not scored on all tasks, `nan` if the score is NaN."""
    rows = selected(frame, task, metric)
    scored = rows.pivot_table(index="num_layers", columns="dim", values="task", aggfunc="nunique")
    return (pivot(frame, task, metric) * 100).map("{:.2f}".format).where(scored == rows["task"].nunique(), "")


def table_text(cells: pd.DataFrame, rows: str = "layers") -> str:
    """Lay out a table of texts by layers (rows) and dims (columns)."""
    return cells.rename_axis(index=None, columns=f"{rows} / dim").to_string()


def rows_name(frame: pd.DataFrame) -> str:
    """Name the rows of a table, which are layers of queries alone where documents have a size of their own."""
    return "layers" if shown(frame)["documents"] == AXES["documents"] else "query layers"


def notes(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> list[str]:
    """Notes below a table: tasks that lack sizes, and values of the axes that the table does not show."""
    lines = []
    by_size = selected(frame, task, metric).groupby(["num_layers", "dim", "task"]).size().unstack("task")
    for name, scored in by_size.items():
        if sizes := [str(Size(int(layers), int(dim))) for layers, dim in scored.index[scored.isna()]]:
            more = f" and {len(sizes) - 3} more" if len(sizes) > 3 else ""
            lines.append(f"There is no mean if a task was not scored: {name} lacks {', '.join(sizes[:3])}{more}.")
    return [*lines, *hidden_notes(frame)]


def hidden_notes(frame: pd.DataFrame) -> list[str]:
    """Notes on the values of the axes that are not shown."""
    return [f"Also {', '.join(values)}: grid.at({axis}=...)." for axis, values in _hidden(frame, shown(frame)).items()]


def example_counts(items: pd.DataFrame) -> dict[str, int]:
    """Return the number of queries or pairs of each task whose scores a grid has."""
    if items.empty:
        return {}
    parts = items.drop_duplicates(["task", "split", "subset"])
    counts = parts["ids"].map(len).groupby(parts["task"], sort=False).sum()
    return {str(task): int(count) for task, count in counts.items()}


def counts_note(counts: Mapping[str, int]) -> list[str]:
    """Write how many examples each task has, where it is known, and whether they are few."""
    known = {task: n for task, n in counts.items() if n}
    if not known:
        return []
    few = f" Fewer than {FEWEST} tell little." if min(known.values()) < FEWEST else ""
    return [f"Examples: {', '.join(f'{task} {n:,}' for task, n in known.items())}.{few}"]


def layers_by_depth(layers: Choice, sizes: Sequence[Size], full_size: str) -> dict[int, str | list[int]]:
    """Return what `truncate` needs as `layers` to keep those of a grid, for each depth that leaves any out."""
    depths = sorted({size.num_layers for size in sizes} - {0})  # a token table has no layers to choose
    shallower = [depth for depth in depths if not full_size.startswith(f"{depth}L-")]
    if not layers or isinstance(layers, str):
        return dict.fromkeys(shallower, layers) if layers else {}
    lists = [kept if isinstance(kept, list) else layers for kept in layers]
    return {len(kept): kept for kept in lists if len(kept) in shallower}


def layers_note(kept: Mapping[int, str | list[int]], size: Size | None = None) -> list[str]:
    """Note the layers that a cut has to keep, to be what was scored."""
    choices = [*dict.fromkeys(map(repr, kept.values()))]
    if not choices:
        return []
    call = f"truncate(model, {'size' if size is None else repr(str(size))}, layers={'...' if choices[1:] else choices[0]})"
    return [f"Scored with layers={' or '.join(choices)}. Cut with the same: {call}"]


def label(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> str:
    """Label of the numbers in a pivot: the metric, and the axes that need naming."""
    return ", ".join([metric_name(frame, task, metric), *shown_labels(frame)])


def called(model: str) -> str:
    """Name a model in a title: without its organisation, and not at all if its name is unknown."""
    return "" if model == _UNNAMED else model.rsplit("/", 1)[-1]


def headed(model: str, text: str) -> str:
    """Put the name of the model in front of a title, if it is known."""
    return f"{called(model)}: {text}" if called(model) else text


def titled(model: str, tasks: Sequence[str], task: str | None) -> str:
    """Title a figure with the model, if it is known, and the task or tasks."""
    return headed(model, subject([task] if task else tasks))


def subject(tasks: Sequence[str]) -> str:
    """Name one or several tasks in a title."""
    return tasks[0] if len(tasks) == 1 else f"mean of {len(tasks)} tasks"


def metric_name(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> str:
    """Name the metric of a pivot: "main score" if the tasks have different ones."""
    rows = frame if task is None else frame[frame["task"] == task]
    names = [metric] if metric is not None else rows[rows["is_main"]]["metric"].unique()
    return names[0] if len(names) == 1 else "main score"


def selected(frame: pd.DataFrame, task: str | None, metric: str | None, free: Container[str] = ()) -> pd.DataFrame:
    """Select the scores of one table, or of one for each value of the axes that are free."""
    rows = frame
    for axis, value in unmistakable(frame, free).items():
        rows = rows[rows[axis] == value]
    return of_metric(narrowed(rows, "task", task), metric)


def of_metric(frame: pd.DataFrame, metric: str | None) -> pd.DataFrame:
    """Select the scores by one metric, which every task must have, or each task's main scores."""
    if metric is None:
        return frame[frame["is_main"]]
    if metric not in set(frame["metric"]):
        # three for each other metric
        areas = [name for name in frame["metric"].unique() if name.startswith("nauc_")]
        others = [name for name in frame["metric"].unique() if name not in areas]
        more = ", and the nauc_ of these" if areas else ""
        raise UsageError(f"There is no metric {metric!r} in this grid, only {', '.join(others)}{more}.")
    rows = frame[frame["metric"] == metric]
    if without := [task for task in frame["task"].unique() if task not in set(rows["task"])]:
        having = [*rows["task"].unique()]
        raise UsageError(f"{', '.join(without)}: no {metric}. Select the tasks that have it: grid.at(tasks={having}).")
    return rows


def means(rows: pd.DataFrame, cells: Sequence[str] = ("num_layers", "dim")) -> pd.DataFrame:
    """Scores by sizes (rows) and tasks (columns)."""
    # pandas would skip NaN, so a size that failed on one split would look better than it is.
    by_task = rows.groupby([*cells, "task"])["score"].agg(lambda scores: scores.to_numpy().mean())
    return by_task.unstack("task")
