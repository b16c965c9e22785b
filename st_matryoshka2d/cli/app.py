"""The app with all commands."""

from __future__ import annotations

from typing import Annotated

import typer

from st_matryoshka2d import __version__
from st_matryoshka2d.cli.align import align
from st_matryoshka2d.cli.asymmetric import asymmetric
from st_matryoshka2d.cli.command import Command, printing
from st_matryoshka2d.cli.compare import compare
from st_matryoshka2d.cli.encode import encode
from st_matryoshka2d.cli.fit_queries import fit_queries
from st_matryoshka2d.cli.grid import grid
from st_matryoshka2d.cli.help_text import PlainGroup
from st_matryoshka2d.cli.info import info
from st_matryoshka2d.cli.latency import latency
from st_matryoshka2d.cli.recommend import recommend
from st_matryoshka2d.cli.report import report
from st_matryoshka2d.cli.truncate import truncate

# Bugs show Python's own traceback, which, unlike rich's, can be pasted into a report.
app = typer.Typer(cls=PlainGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"st-matryoshka2d {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Sentence-embedding models that can be cut in depth and in width: align, score, choose a size, cut."""


COMMANDS = (info, align, fit_queries, grid, latency, recommend, report, compare, truncate, asymmetric, encode)
for command in COMMANDS:
    app.command(cls=Command)(printing(command))
