"""`compare`: test size by size whether one model is better than another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.grids import named_apart
from st_matryoshka2d.cli.tables import records, table_of_cells

_TEST = "auto: paired t-test of queries, paired jackknife of correlations; fisher: Fisher's z, as in Starbucks' Table 4."


def compare(
    grid: options.Grid,
    other: options.Grid,
    metric: options.Metric = None,
    alpha: Annotated[float, typer.Option(help="A difference is significant if p is below this.")] = 0.05,
    test: Annotated[Literal["auto", "fisher"], typer.Option(help=_TEST)] = "auto",
    plot: Annotated[Path | None, options.figure_option("Draw the differences as a heat map")] = None,
) -> Answer:
    """Compare two grids of the same tasks: their differences, and whether these are significant.

    For example:

        st-matryoshka2d compare before.parquet after.parquet
    """
    options.check_outputs(plot)

    from st_matryoshka2d import GridResult
    from st_matryoshka2d.grid.compare import shown

    ours, theirs = named_apart([GridResult.load(grid), GridResult.load(other)], [grid, other])
    comparison = ours.compare(theirs, metric=metric, alpha=alpha, test=test)
    if plot is not None:
        comparison.plot(plot)
    title, cells, note = shown(comparison)
    first, second = comparison.names
    data = {"grid": first, "other": second, "alpha": alpha, "correction": comparison.correction}
    data["differences"] = records(comparison.to_frame())
    return Answer([title, table_of_cells(cells), note], data, [plot])
