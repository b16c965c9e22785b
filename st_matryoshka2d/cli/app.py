"""The app: `st-matryoshka2d`, or `python -m st_matryoshka2d`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from st_matryoshka2d import __version__
from st_matryoshka2d.cli.cutting import asymmetric, info, truncate
from st_matryoshka2d.cli.errors import mistakes_in_one_line
from st_matryoshka2d.cli.fitting import align, fit_queries, heal
from st_matryoshka2d.cli.scoring import grid, recommend, report


class Commands(TyperGroup):
    """Commands that answer a user's mistake with one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was called."""
        with mistakes_in_one_line():
            return super().invoke(ctx)


# Without rich, which takes longer to import than all the rest. A fault shows Python's own traceback, which can be
# pasted into a report.
app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
for command in (info, grid, recommend, report, align, heal, fit_queries, truncate, asymmetric):
    app.command()(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"st-matryoshka2d {__version__}")
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_show_version, is_eager=True)


@app.callback()
def about(version: Annotated[bool, _VERSION] = False) -> None:
    """Sentence-embedding models that can be cut in depth and in width: score, align, cut.

    To give several values of an option, repeat it.
    """
