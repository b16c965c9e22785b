"""A table of a `FunnelResult`."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    rule = ["-" * (width - 1) + ":" for width in widths]
    lines = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in (head, rule, *body)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
