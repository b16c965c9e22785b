"""Errors and warnings in one line each; a fault keeps its traceback."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

import st_matryoshka2d
from st_matryoshka2d.errors import UsageError

_PACKAGE = Path(st_matryoshka2d.__file__).parent
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
    if isinstance(error, UsageError) or type(error).__module__.partition(".")[0] in _HUB:
        return True
    return (isinstance(error, OSError) and error.filename is not None) or _is_refusal(error)


def _is_refusal(error: Exception) -> bool:
    """Tell whether this package raised an error about a value; other libraries' are faults."""
    *_, last = traceback.extract_tb(error.__traceback__)
    kinds = (ImportError, OSError, TypeError, ValueError)
    return isinstance(error, kinds) and Path(last.filename).is_relative_to(_PACKAGE)


def _print_warning(message: Warning | str, *_where: Any, **_more: Any) -> None:
    _print_line("Warning", message)


def _print_line(kind: str, message: object) -> None:
    typer.echo(f"{kind}: {' '.join(str(message).split())}", err=True)
