"""A table of layers and dims as text."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

__all__ = ["aligned", "latex", "markdown"]

_CORNER = "layers / dim"

# What has a meaning of its own in LaTeX, and may be in the name of a task or a metric.
_LATEX = str.maketrans({mark: f"\\{mark}" for mark in "&%$#_{}"} | {"\\": r"\textbackslash{}", "\n": " "})


def markdown(cells: pd.DataFrame) -> str:
    """A Markdown table of layers and dims.

    Args:
        cells: Texts by layers (rows) and dims (columns).
    """
    head = [_CORNER, *map(str, cells.columns)]
    body = [[str(layers), *row] for layers, row in zip(cells.index, cells.to_numpy(), strict=True)]
    return aligned(head, body)


def aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose source is aligned as well.

    Args:
        head: Names of the columns.
        body: Cells by row.
    """
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    rule = ["-" * (width - 1) + ":" for width in widths]
    lines = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in (head, rule, *body)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latex(cells: pd.DataFrame, caption: str) -> str:
    """A LaTeX table, for the package booktabs.

    Args:
        cells: Texts by layers (rows) and dims (columns).
        caption: What the table shows.
    """
    head = " & ".join([_CORNER, *map(str, cells.columns)])
    body = [" & ".join([str(layers), *row]) for layers, row in zip(cells.index, cells.to_numpy(), strict=True)]
    rows = "".join(f"{row} \\\\\n" for row in body)
    return (
        f"\\begin{{table}}\n\\centering\n\\caption{{{caption.translate(_LATEX)}}}\n"
        f"\\begin{{tabular}}{{r{'r' * len(cells.columns)}}}\n\\toprule\n{head} \\\\\n\\midrule\n"
        f"{rows}\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )
