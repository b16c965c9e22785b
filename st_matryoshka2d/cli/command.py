"""Behaviour of all commands: the answer on stdout, everything else on stderr, errors as one-line messages."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text
from typer.core import TyperCommand


@dataclass(frozen=True)
class Answer:
    """The result of a command, which its function returns.

    Args:
        shown: Lines and tables for people.
        data: The same as JSON data, for programs.
        as_json: Whether to print `data`.
        written: Files that were written; None stands for one that was not requested.
    """

    shown: Sequence[RenderableType]
    data: dict[str, Any]
    as_json: bool
    written: Sequence[Path | None] = ()

    def show(self) -> None:
        """Print the answer."""
        files = [str(path) for path in self.written if path is not None]
        if self.as_json:
            data = {**self.data, "written": files} if self.written else self.data
            typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))
            return
        # Text from models and files must not be read as markup.
        console = Console(highlight=False, markup=False, emoji=False)
        if not console.is_terminal:
            console.width = 10_000  # a file or a pipe: do not wrap lines
        for part in (*self.shown, *(f"Written: {file}" for file in files)):
            console.print(part, soft_wrap=isinstance(part, str))


class Command(TyperCommand):
    """A command whose function returns an `Answer`."""

    def invoke(self, ctx: Any) -> None:
        """Run the command and print its answer or its error."""
        try:
            # output of libraries must not mix with the JSON
            with _plain_warnings(), redirect_stdout(sys.stderr):
                answer: Answer = super().invoke(ctx)
        except typer.TyperException as error:
            _print_json_error(error.format_message(), as_json=ctx.params["as_json"])
            raise
        except (OSError, TypeError, ValueError) as error:
            message = str(error) or type(error).__name__
            _print_line("Error", "bold red", message)
            _print_json_error(message, as_json=ctx.params["as_json"])
            raise typer.Exit(1) from error
        answer.show()

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse a call; with --json, a usage error is printed as JSON too."""
        as_json = "--json" in args  # parsing empties `args`
        try:
            return super().make_context(info_name, args, parent, **extra)
        except typer.TyperException as error:
            _print_json_error(error.format_message(), as_json=as_json)
            raise


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show only the messages of warnings, without the line of Python."""

    def show(message: Warning | str, *_where: Any, **_more: Any) -> None:
        _print_line("Warning", "yellow", str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _print_json_error(message: str, *, as_json: bool) -> None:
    """Print an error on standard output, where programs read the answer."""
    if as_json:
        typer.echo(json.dumps({"error": " ".join(message.split())}, ensure_ascii=False))


def _print_line(kind: str, style: str, message: str) -> None:
    """Print an error or a warning on standard error, in one line."""
    line = Text.assemble((f"{kind}: ", style), " ".join(message.split()))
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)
