"""The app: `st-matryoshka2d`, or `python -m st_matryoshka2d`. A mistake is one line; a fault keeps its traceback."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from st_matryoshka2d import __version__
from st_matryoshka2d.cli.cutting import asymmetric, info, truncate
from st_matryoshka2d.cli.fitting import align, fit_queries, heal
from st_matryoshka2d.cli.scoring import grid, recommend, report
from st_matryoshka2d.errors import UsageError

_HUB = {"huggingface_hub", "httpx"}  # not imported here, which would take a while


class Commands(TyperGroup):
    """Commands that answer a user's mistake with one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was called."""
        with _mistakes_in_one_line():
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


@contextmanager
def _mistakes_in_one_line() -> Iterator[None]:
    """Print warnings, and the error of a user's mistake, in one line each on standard error."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            yield
    except Exception as error:
        if not _is_mistake(error):
            raise
        _print_line("Error", error)
        raise typer.Exit(1) from error


def _is_mistake(error: Exception) -> bool:
    """Tell what a user can mend, in the call, on the Hub or on the disk, from a fault."""
    if isinstance(error, (UsageError, ImportError)):
        return True
    if type(error).__module__.partition(".")[0] in _HUB:
        return True
    is_of_a_file = isinstance(error, OSError) and error.filename is not None
    return is_of_a_file or isinstance(error, FileNotFoundError)


def _print_warning(message: Warning | str, *_where: Any, **_more: Any) -> None:
    _print_line("Warning", message)


def _print_line(kind: str, message: object) -> None:
    typer.echo(f"{kind}: {' '.join(str(message).split())}", err=True)
