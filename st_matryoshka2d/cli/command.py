"""What all commands have in common: an answer on stdout, everything else on stderr, errors in words."""

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
    """What a command found out; its function returns it.

    Args:
        shown: For people: lines and tables.
        data: The same for programs; what JSON can hold.
        as_json: Whether programs asked.
        written: Files that were written, None where none was asked for.
    """

    shown: Sequence[RenderableType]
    data: dict[str, Any]
    as_json: bool
    written: Sequence[Path | None] = ()

    def show(self) -> None:
        """Print it."""
        files = [str(path) for path in self.written if path is not None]
        if self.as_json:
            data = {**self.data, "written": files} if self.written else self.data
            typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))
            return
        # Text from models and files is no markup.
        console = Console(highlight=False, markup=False, emoji=False)
        if not console.is_terminal:
            console.width = 10_000  # nobody's window: nothing to fold lines for
        for part in (*self.shown, *(f"Written: {file}" for file in files)):
            console.print(part, soft_wrap=isinstance(part, str))


class Command(TyperCommand):
    """A command whose function returns an `Answer`."""

    def invoke(self, ctx: Any) -> None:
        """Run the command and print its answer or its error."""
        try:
            # what libraries print must not get between a program and its JSON
            with _warnings_in_words(), redirect_stdout(sys.stderr):
                answer: Answer = super().invoke(ctx)
        except typer.TyperException as error:
            _tell_programs(error.format_message(), as_json=ctx.params["as_json"])
            raise
        except (OSError, TypeError, ValueError) as error:
            message = str(error) or type(error).__name__
            _tell("Error", "bold red", message)
            _tell_programs(message, as_json=ctx.params["as_json"])
            raise typer.Exit(1) from error
        answer.show()

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse a call; with --json, a usage error is printed as JSON too."""
        asked = "--json" in args  # which reading them uses up
        try:
            return super().make_context(info_name, args, parent, **extra)
        except typer.TyperException as error:
            _tell_programs(error.format_message(), as_json=asked)
            raise


@contextmanager
def _warnings_in_words() -> Iterator[None]:
    """Show a warning's message without its line of Python."""

    def show(message: Warning | str, *_where: Any, **_more: Any) -> None:
        _tell("Warning", "yellow", str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _tell_programs(message: str, *, as_json: bool) -> None:
    """Print an error where a program looks for the answer."""
    if as_json:
        typer.echo(json.dumps({"error": " ".join(message.split())}, ensure_ascii=False))


def _tell(kind: str, style: str, message: str) -> None:
    """Print an error or a warning on standard error, in one line."""
    line = Text.assemble((f"{kind}: ", style), " ".join(message.split()))
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)
