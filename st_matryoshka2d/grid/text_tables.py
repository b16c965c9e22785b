"""Tables of layers by dims as Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from st_matryoshka2d.grid.pivots import called, notes, percent, title

# Special characters of LaTeX that may be in the name of a task or a metric, or in a note.
_LATEX = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "\n": " "}
)


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


def latex_scores(frame: pd.DataFrame, model: str, task: str | None = None, metric: str | None = None) -> str:
    """Format percents as a LaTeX table, the best one bold, with the notes as comments."""
    cells = percent(frame, task, metric)
    numbers = cells.apply(pd.to_numeric, errors="coerce")
    best = cells.where(numbers != numbers.max(axis=None), cells.map(r"\textbf{{{}}}".format))
    about = ", ".join(filter(None, [called(model), title(frame, task, metric)]))
    return "".join(f"% {note}\n" for note in notes(frame, task, metric)) + latex(best, about)


def latex(cells: pd.DataFrame, about: str, note: str = "") -> str:
    """Format a table of layers (rows) and dims (columns) as a LaTeX table (package booktabs) with a caption and a label."""
    table = head_and_body(cells)
    head, *body = [" & ".join(row) + r" \\" for row in (table[0], *table[1])]
    caption = ". ".join(filter(None, [about, note])).translate(_LATEX)
    label = re.sub(r"[^a-z0-9]+", "-", about.lower()).strip("-")
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\label{{tab:{label}}}"]
    lines += [rf"\begin{{tabular}}{{{'r' * (head.count(' & ') + 1)}}}", r"\toprule", head, r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])
