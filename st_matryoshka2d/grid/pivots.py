"""Views of a grid's tidy table: layers by dims, tasks by sizes, costs by sizes; as frames and as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from st_matryoshka2d.grid.grid_tables import AXES, axis_labels, narrowed
from st_matryoshka2d.sizes import Size, positive_int


def pivot(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> pd.DataFrame:
    """Scores by layers (rows) and dims (columns): means over the splits and subsets of a task, then over tasks."""
    return _means(selected(frame, task, metric)).mean(axis=1, skipna=False).unstack("dim")


def by_task(frame: pd.DataFrame, metric: str | None = None) -> pd.DataFrame:
    """Scores by tasks (rows) and sizes (columns): means over the splits and subsets of a task."""
    rows = selected(frame, None, metric)
    by_size = _means(rows)[list(rows["task"].unique())]
    names = [str(Size(int(layers), int(dim))) for layers, dim in by_size.index]
    return by_size.set_axis(pd.Index(names, name="size")).T


def shown(frame: pd.DataFrame) -> dict[str, str]:
    """Choose one value to show of each axis: the default if the grid has it, otherwise the first value."""
    values = {axis: frame[axis].unique() for axis in AXES}
    return {axis: default if default in values[axis] else str(values[axis][0]) for axis, default in AXES.items()}


def _hidden(frame: pd.DataFrame) -> dict[str, list[str]]:
    """List the values of each axis that are not shown."""
    others = {axis: [str(value) for value in frame[axis].unique() if value != one] for axis, one in shown(frame).items()}
    return {axis: values for axis, values in others.items() if values}


def shown_labels(frame: pd.DataFrame) -> list[str]:
    """Describe the shown values of the axes that are not at their default, or that have further values."""
    one = shown(frame)
    ambiguous = [axis for axis in _hidden(frame) if one[axis] == AXES[axis]]
    return [*axis_labels(one), *("documents at the same size" if axis == "documents" else one[axis] for axis in ambiguous)]


def default_value(frame: pd.DataFrame, axis: str) -> str:
    """Return the value of an axis to compute with: the default or the only one."""
    one, others = shown(frame)[axis], _hidden(frame).get(axis)
    if others and one != AXES[axis]:
        raise ValueError(
            f"This grid has several {axis}s, {', '.join([one, *others])}, but not {AXES[axis]}. "
            f"Select one, for example grid.at({axis}={one!r})."
        )
    return one


def percent(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> pd.DataFrame:
    """The pivot as text: empty if a size was not scored on all tasks, `nan` if the score is NaN."""
    rows = selected(frame, task, metric)
    scored = rows.pivot_table(index="num_layers", columns="dim", values="task", aggfunc="nunique")
    return (pivot(frame, task, metric) * 100).map("{:.2f}".format).where(scored == rows["task"].nunique(), "")


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
    return [f"Also {', '.join(values)}: grid.at({axis}=...)." for axis, values in _hidden(frame).items()]


def examples_note(items: pd.DataFrame) -> list[str]:
    """Note how many examples each task has, if the grid has their scores."""
    if items.empty:
        return []
    parts = items.drop_duplicates(["task", "split", "subset"])
    counts = parts["ids"].map(len).groupby(parts["task"], sort=False).sum()
    return [f"Examples: {', '.join(f'{task} {count:,}' for task, count in counts.items())}."]


def title(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> str:
    """Title of a table of percents."""
    return f"{subject([task] if task else list(frame['task'].unique()))}: {label(frame, task, metric)}, percent"


def label(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> str:
    """Label of the numbers in a pivot: the metric, and the axes that need naming."""
    return ", ".join([metric_name(frame, task, metric), *shown_labels(frame)])


def subject(tasks: Sequence[str]) -> str:
    """Name one or several tasks in a title."""
    return tasks[0] if len(tasks) == 1 else f"mean of {len(tasks)} tasks"


def metric_name(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> str:
    """Name the metric of a pivot: "main score" if the tasks have different ones."""
    rows = frame if task is None else frame[frame["task"] == task]
    names = [metric] if metric is not None else rows[rows["is_main"]]["metric"].unique()
    return names[0] if len(names) == 1 else "main score"


def selected(frame: pd.DataFrame, task: str | None, metric: str | None, free: Sequence[str] = ()) -> pd.DataFrame:
    """Select the default of each axis that is not free."""
    rows = frame
    for axis in (axis for axis in AXES if axis not in free):
        rows = rows[rows[axis] == default_value(frame, axis)]
    rows = narrowed(rows, "task", task)
    return rows[rows["is_main"]] if metric is None else narrowed(rows, "metric", metric)


def _means(rows: pd.DataFrame, cells: Sequence[str] = ("num_layers", "dim")) -> pd.DataFrame:
    """Scores by sizes (rows) and tasks (columns)."""
    # pandas would skip NaN, so a size that failed on one split would look better than it is.
    means = rows.groupby([*cells, "task"])["score"].agg(lambda scores: scores.to_numpy().mean())
    return means.unstack("task")


# Special characters of LaTeX that may be in the name of a task or a metric.
_LATEX = str.maketrans({mark: f"\\{mark}" for mark in "&%$#_{}"} | {"\\": r"\textbackslash{}", "\n": " "})


def head_and_body(cells: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Convert a table of layers (rows) and dims (columns) to rows of text."""
    head = ["layers / dim", *map(str, cells.columns)]
    return head, [[str(layers), *row] for layers, row in zip(cells.index, cells.to_numpy(), strict=True)]


def aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    rule = ["-" * (width - 1) + ":" for width in widths]
    lines = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in (head, rule, *body)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latex(frame: pd.DataFrame, task: str | None = None, metric: str | None = None) -> str:
    """Format percents as a LaTeX table (package booktabs), with the notes as comments."""
    table = head_and_body(percent(frame, task, metric))
    head, *body = [" & ".join(row) + r" \\" for row in (table[0], *table[1])]
    lines = [f"% {note}" for note in notes(frame, task, metric)]
    lines += [r"\begin{table}", r"\centering", rf"\caption{{{title(frame, task, metric).translate(_LATEX)}}}"]
    lines += [rf"\begin{{tabular}}{{{'r' * (head.count(' & ') + 1)}}}", r"\toprule", head, r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


HOW_TO_TIME = "grid.with_latency(benchmark_latency(model))"

# Bits per coordinate, under mteb's names and sentence-transformers' `ubinary`.
BITS = dict(float32=32, float16=16, bfloat16=16, int8=8, uint8=8, int4=4, uint4=4, binary=1, ubinary=1)


def vector_bytes(dim: int, precision: str = "float32") -> int:
    """Return the packed bytes of one vector, without the overhead of an index."""
    bits = BITS.get(precision)
    if bits is None:
        raise ValueError(f"Unknown precision {precision!r}; known are {', '.join(BITS)}.")
    return -(-positive_int(dim, "dim") * bits // 8)


def costs(
    frame: pd.DataFrame,
    latency: pd.DataFrame | None = None,
    task: str | None = None,
    queries_per_document: float | None = None,
) -> pd.DataFrame:
    """Score and cost of every size and precision, ascending; NaN if a task, or the largest size, was not scored.

    With `queries_per_document`, there is one row per pair of query size and document size.
    """
    cells = ["num_layers", "dim", "precision", *([] if queries_per_document is None else ["documents"])]
    # A missing task makes the mean NaN: a size must not look better for skipping a task.
    scores = _means(selected(frame, task, None, free=cells), cells).mean(axis=1, skipna=False)
    kinds: dict[str, Any] = {"num_layers": int, "milliseconds_per_text": float, "parameters": "Int64"}
    times = pd.DataFrame(latency, columns=[*kinds]).astype(kinds).set_index("num_layers")
    table = scores.rename("score").reset_index().join(times, on="num_layers")
    documents = [document_size(row) for row in table.itertuples()]
    stored = zip(documents, table["precision"], strict=True)
    table["bytes"] = [vector_bytes(size.dim, precision) for size, precision in stored]
    full = full_row(table)
    table["relative"] = table["score"] / (full["score"] if full is not None and full["score"] > 0 else np.nan)
    # In this order because a narrow terminal hides the middle columns.
    names = ["num_layers", "dim", "score", "relative", "precision", "milliseconds_per_text", "parameters", "bytes"]
    if queries_per_document is not None:
        names += ["documents", "milliseconds_in_all"]
        once = times["milliseconds_per_text"].reindex([size.num_layers for size in documents]).array
        table["milliseconds_in_all"] = once + queries_per_document * table["milliseconds_per_text"]
    return table.sort_values(["num_layers", "dim", "bytes"], ignore_index=True, kind="stable")[names]


def full_row(table: pd.DataFrame) -> pd.Series[Any] | None:
    """Return the row of the largest depth and width, at the highest precision; scores are relative to it."""
    largest = table[(table["num_layers"] == table["num_layers"].max()) & (table["dim"] == table["dim"].max())]
    return None if largest.empty else largest.loc[largest["bytes"].idxmax()]


def reference_name(row: Any, full_size: str) -> str:
    """Name the size to which scores are relative, and say whether it is the full size."""
    if str(Size(row["num_layers"], row["dim"])) == full_size:
        return f"{name_of(row)} (the full size)"
    return f"{name_of(row)} (the largest of the grid{f', which lacks the full {full_size}' if full_size else ''})"


def document_size(row: Any) -> Size:
    """Return the document size in a row of `costs`, at most as wide as the query, because only common dims are compared."""
    size, documents = Size(row.num_layers, row.dim), getattr(row, "documents", AXES["documents"])
    if documents == AXES["documents"]:
        return size
    own = Size.parse(documents)
    return Size(own.num_layers, min(own.dim, size.dim))


def name_of(row: Any) -> str:
    """Name a row of `costs`: `"4L-128d"`, `"4L-128d int8"`, or `"3L-64d for queries, 6L-64d for documents"`."""
    size, own = Size(row.num_layers, row.dim), document_size(row)
    named = str(size) if row.precision == AXES["precision"] else f"{size} {row.precision}"
    return named if own == size else f"{named} for queries, {own} for documents"
