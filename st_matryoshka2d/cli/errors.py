"""Errors and warnings in one line each; a fault keeps its traceback."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from st_matryoshka2d.errors import UsageError

_HUB = {"huggingface_hub", "httpx"}  # not imported here, which would take a while


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
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
