"""The config entry for what `align` measures: how well each size agrees with the whole model. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from st_matryoshka2d.sizes import Size

_DIGITS = 4
_SHOWN = 6  # dims in a table: as many as the ladder has

# the entry of a config that names the model into whose space this one was mapped
INTO = "matryoshka_into"


def agrees_with(config: Any) -> str:
    """Name what the sizes of a model were compared with."""
    other = config.get(INTO) if isinstance(config, dict) else getattr(config, INTO, None)
    return str(other).removeprefix("local/") if other else "the whole model"


def declare_agreement(config: Any, measured: Mapping[Size, float]) -> None:
    """Write the agreement of each size into a model's config, in place of an earlier one; without any, remove the entry."""
    if measured:
        config.matryoshka_agreement = {str(size): round(value, _DIGITS) for size, value in sorted(measured.items())}
    elif hasattr(config, "matryoshka_agreement"):
        del config.matryoshka_agreement


def declared_agreement(config: Any) -> dict[Size, float]:
    """Return the agreement of each size in a model's config, ascending."""
    entry = config.get("matryoshka_agreement") if isinstance(config, dict) else getattr(config, "matryoshka_agreement", None)
    try:
        found = sorted((Size.parse(text), float(value)) for text, value in (entry or {}).items())
    except (AttributeError, OverflowError, TypeError, ValueError):
        return {}  # an entry of another program
    return dict(found) if all(-1 <= value <= 1 for _, value in found) else {}


def agreement_within(config: Any, size: Size, full: Size) -> dict[Size, float]:
    """Return what still holds for a cut: a shallower one has only the readout of its own depth."""
    depths = range(full.num_layers + 1) if size.num_layers == full.num_layers else [size.num_layers]
    measured = declared_agreement(config)
    return {each: value for each, value in measured.items() if each.num_layers in depths and each.dim <= size.dim}


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
