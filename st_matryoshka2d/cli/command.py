"""Behaviour of all commands: the answer on stdout, everything else on stderr, errors as one-line messages."""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from st_matryoshka2d.cli.help_text import PlainCommand


@dataclass(frozen=True)
class Answer:
    """The result of a command: lines and tables for people, the same as data for programs, and the files it wrote."""

    shown: Sequence[RenderableType]
    data: dict[str, Any]
    written: Sequence[Path | None] = ()  # None stands for a file that was not requested

    def show(self, *, as_json: bool) -> None:
        """Print the answer."""
        files = [str(path) for path in self.written if path is not None]
        if as_json:
            data = {**self.data, "written": files} if self.written else self.data
            typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))
            return
        # Text from models and files must not be read as markup.
        console = Console(highlight=False, markup=False, emoji=False)
        if not console.is_terminal:
            console.width = 10_000  # a file or a pipe: do not wrap lines
        for part in (*self.shown, *(f"Written: {file}" for file in files)):
            console.print(part, soft_wrap=isinstance(part, str))


class Command(PlainCommand):
    """A command whose usage errors are JSON too if it is called with --json."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse a call."""
        with _errors_told(as_json="--json" in args):  # parsing empties `args`
            return super().make_context(info_name, args, parent, **extra)


def printing(command: Callable[..., Answer]) -> Callable[..., None]:
    """Print the answer of a command; add the option --json, and an option for each field of a dataclass that it takes."""
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for name, option in inspect.signature(command, eval_str=True).parameters.items():
        if is_dataclass(option.annotation):
            groups[name] = option.annotation
            options += inspect.signature(groups[name], eval_str=True).parameters.values()
        else:
            options.append(option)
    kind = inspect.Parameter.KEYWORD_ONLY
    hint = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
    options.append(inspect.Parameter("as_json", kind, default=False, annotation=hint))

    @wraps(command)
    def called(*, as_json: bool, **given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        # output of libraries must not mix with the JSON
        with _errors_told(as_json=as_json), _plain_warnings(), redirect_stdout(sys.stderr):
            answer = command(**given)
        answer.show(as_json=as_json)

    called.__signature__ = inspect.Signature([one.replace(kind=kind) for one in options])  # type: ignore[attr-defined]
    return called


@contextmanager
def _errors_told(*, as_json: bool) -> Iterator[None]:
    """Print an error in one line, and with --json also on standard output, where programs read the answer."""
    try:
        yield
    except typer.TyperException as error:  # a wrong call, which typer prints
        _print_json_error(error.format_message(), as_json)
        raise
    except (ImportError, OSError, TypeError, ValueError) as error:
        message = str(error) or type(error).__name__
        _print_line("Error", "bold red", message)
        _print_json_error(message, as_json)
        raise typer.Exit(1) from error


def _print_json_error(message: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"error": " ".join(message.split())}, ensure_ascii=False))


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show only the messages of warnings, without the line of Python."""

    def show(message: Warning | str, *_where: Any, **_more: Any) -> None:
        _print_line("Warning", "yellow", str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _print_line(kind: str, style: str, message: str) -> None:
    """Print an error or a warning on standard error, in one line."""
    line = Text.assemble((f"{kind}: ", style), " ".join(message.split()))
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)
