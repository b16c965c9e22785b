"""How well each size agrees with the whole model, as text: a table of layers by dims."""

from __future__ import annotations

from collections.abc import Mapping

from st_matryoshka2d.sizes import Size

_SHOWN = 6  # dims in a table: as many as the ladder has


def agreement_table(measured: Mapping[Size, float]) -> tuple[list[str], list[list[str]]]:
    """Return a table of layers by the largest dims as text, its head and its rows; empty cells were not measured."""
    dims = sorted({size.dim for size in measured})[-_SHOWN:]
    cells = {size: f"{value:.3f}" for size, value in measured.items()}
    depths = sorted({size.num_layers for size in measured if size.dim in dims})
    rows = [[str(depth), *(cells.get(Size(depth, dim), "") for dim in dims)] for depth in depths]
    return ["layers / dim", *map(str, dims)], rows


def agreement_text(measured: Mapping[Size, float], other: str | None = None) -> str:
    """Write that table in lines of text; `other` is what was agreed with, if not the full size."""
    head, rows = agreement_table(measured)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in (head, *rows)]
    title = f"Agreement with {other or max(measured)}, on texts left out of the fit:"
    return "\n".join([title, *lines])
