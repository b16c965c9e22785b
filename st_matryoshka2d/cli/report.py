"""`report`: grids as one page to send to others."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.checkpoints import GridOrModel
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.grids import named_apart
from st_matryoshka2d.cli.tables import read_times

_BESIDE = typer.Option(help="Grid of the same tasks to show beside it; may be repeated.", exists=True, dir_okay=False)
_NAMES = typer.Option(
    help="Name of a grid, for the page: one for each grid, in order.",
    show_default="the name of its model, or of its file if these are not different",
)
_TIMES = options.file_option(
    "--latency", "Times written by the command latency, one file for each grid, in order", (".csv", ".json"), exists=True
)
_OUT = options.file_option("--out", "The page", (".html", ".htm"), writable=True)


def report(
    *,
    beside: Annotated[list[Path] | None, _BESIDE] = None,
    names: Annotated[list[str] | None, _NAMES] = None,
    latency: Annotated[list[Path] | None, _TIMES] = None,
    title: Annotated[str | None, typer.Option(help="Title.", show_default="the models and the tasks")] = None,
    out: Annotated[Path, _OUT],
    source: GridOrModel,
) -> Answer:
    """Show a grid, or an aligned model, as one page of HTML that opens without a network.

    For example:

        st-matryoshka2d report grid.parquet --out report.html
    """
    number = 1 + len(beside or [])
    for option, given in (("--latency", latency), ("--names", names)):
        if given and len(given) != number:
            raise typer.BadParameter(
                f"{option} must be given once for each of the {number} grids, in order; got {len(given)}."
            )
    options.check_outputs(out)

    from st_matryoshka2d import GridResult

    grids = [source.grid(), *map(GridResult.load, beside or [])]
    if beside and not names:
        grids = named_apart(grids, [source.model, *beside])
    shown = []
    for grid, name, times in zip_longest(grids, names or [], latency or []):
        named = grid if name is None else grid.named(name)
        depths = {size.num_layers for size in grid.sizes}
        shown.append(named if times is None else named.with_latency(read_times(times, depths)))
    shown[0].report(out, beside=shown[1:], title=title)
    return Answer([], {"models": [grid.model for grid in shown], "tasks": shown[0].tasks}, [out])
