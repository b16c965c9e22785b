"""From the tidy table to layers by dims."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from st_matryoshka2d.evaluation.grid.columns import AXES, told
from st_matryoshka2d.sizes import Size

__all__ = [
    "by_task",
    "hidden_axes",
    "metric_name",
    "percent",
    "pivot",
    "shown",
    "subject",
    "the_one",
    "to_be_told",
    "without_mean",
]


def pivot(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> pd.DataFrame:
    """Scores by layers (rows) and dims (columns): the mean over tasks of the mean over a task's splits and subsets.

    Args:
        frame: The tidy table of a grid.
        task: Name of one task; None for all.
        metric: Name of a metric; None for each task's main metric.
    """
    return _means(_rows(frame, task, metric)).mean(axis=1, skipna=False).unstack("dim")


def by_task(frame: pd.DataFrame, metric: str | None = None) -> pd.DataFrame:
    """Scores by tasks (rows) and sizes (columns): the means over a task's splits and subsets.

    Args:
        frame: As for `pivot`.
        metric: As for `pivot`.
    """
    rows = _rows(frame, None, metric)
    by_size = _means(rows)[list(rows["task"].unique())]
    names = [str(Size(int(layers), int(dim))) for layers, dim in by_size.index]
    return by_size.set_axis(pd.Index(names, name="size")).T


def without_mean(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> dict[str, list[Size]]:
    """By task, the sizes at which it was not scored while others were: there is no mean over tasks.

    Args:
        frame: As for `pivot`.
        task: As for `pivot`.
        metric: As for `pivot`.
    """
    scored = _rows(frame, task, metric).groupby(["num_layers", "dim", "task"]).size().unstack("task")
    return {
        str(name): [Size(int(layers), int(dim)) for layers, dim in missing.index[missing]]
        for name, missing in scored.isna().items()
        if missing.any()
    }


def shown(frame: pd.DataFrame) -> dict[str, str]:
    """By axis, the one value that is shown: the plain one where there is such, or else the first.

    Args:
        frame: As for `pivot`.
    """
    return {axis: plain if plain in there else there[0] for axis, plain in AXES.items() if (there := _values(frame, axis))}


def hidden_axes(frame: pd.DataFrame) -> dict[str, list[str]]:
    """By axis, what a grid has beside the one value that is shown.

    Args:
        frame: As for `pivot`.
    """
    beside = {axis: [value for value in _values(frame, axis) if value != one] for axis, one in shown(frame).items()}
    return {axis: values for axis, values in beside.items() if values}


def to_be_told(frame: pd.DataFrame) -> list[str]:
    """What is shown of the axes where that does not go without saying: it is not plain, or not all there is.

    Args:
        frame: As for `pivot`.
    """
    one, hidden = shown(frame), hidden_axes(frame)
    plain = {axis: value for axis, value in one.items() if value == AXES[axis] and axis in hidden}
    return [*told(one), *("documents at the same size" if axis == "documents" else value for axis, value in plain.items())]


def the_one(frame: pd.DataFrame, axis: str) -> str:
    """The one value of an axis that numbers are taken of: the plain one, or the only one.

    Args:
        frame: As for `pivot`.
        axis: One of `AXES`.

    Raises:
        ValueError: There are several, and none of them is plain.
    """
    one, there = shown(frame)[axis], _values(frame, axis)
    if len(there) > 1 and one != AXES[axis]:
        raise ValueError(
            f"This grid has several {axis}s, {', '.join(there)}, and none of them is {AXES[axis]}: say which one is meant, "
            f"such as grid.at({axis}={one!r})."
        )
    return one


def percent(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> pd.DataFrame:
    """The pivot as text: empty where a size was not scored on all the tasks, `nan` where the score is NaN.

    Args:
        frame: As for `pivot`.
        task: As for `pivot`.
        metric: As for `pivot`.
    """
    rows = _rows(frame, task, metric)
    scored = rows.pivot_table(index="num_layers", columns="dim", values="task", aggfunc="nunique")
    return (pivot(frame, task, metric) * 100).map("{:.2f}".format).where(scored == rows["task"].nunique(), "")


def subject(tasks: Sequence[str]) -> str:
    """What a table of these tasks is about.

    Args:
        tasks: Their names.
    """
    return tasks[0] if len(tasks) == 1 else f"mean of {len(tasks)} tasks"


def metric_name(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> str:
    """The metric of a pivot, where there is one for all tasks.

    Args:
        frame: As for `pivot`.
        task: As for `pivot`.
        metric: As for `pivot`.
    """
    rows = frame if task is None else frame[frame["task"] == task]
    names = (rows[rows["is_main"]]["metric"] if metric is None else pd.Series([metric])).unique()
    return str(names[0]) if len(names) == 1 else "main score"


def _rows(frame: pd.DataFrame, task: str | None, metric: str | None) -> pd.DataFrame:
    rows = frame
    for axis in AXES:
        rows = rows[rows[axis] == the_one(frame, axis)]
    if task is not None:
        if task not in set(rows["task"]):
            raise ValueError(f"There is no task {task!r} here; there are {', '.join(rows['task'].unique())}.")
        rows = rows[rows["task"] == task]
    if metric is None:
        return rows[rows["is_main"]]
    if metric not in set(rows["metric"]):
        raise ValueError(f"There is no metric {metric!r} here; there are {', '.join(rows['metric'].unique())}.")
    return rows[rows["metric"] == metric]


def _values(frame: pd.DataFrame, axis: str) -> list[str]:
    return [str(value) for value in frame[axis].unique()]


def _means(rows: pd.DataFrame) -> pd.DataFrame:
    """Sizes by tasks."""
    return rows.groupby(["num_layers", "dim", "task"])["score"].agg(_mean).unstack("task")


def _mean(scores: pd.Series[float]) -> float:
    # pandas would leave NaN out, and a size that failed at one task would look better for it
    return float(scores.to_numpy().mean())
