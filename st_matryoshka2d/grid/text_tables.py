"""Tables of layers by dims as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from st_matryoshka2d.grid.pivots import notes, percent, title

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
