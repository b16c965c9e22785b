"""Arguments and options that several commands share: one name for each thing."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer

from st_matryoshka2d import Size
from st_matryoshka2d.errors import UsageError

# The callbacks refuse a call before anything slow is imported.


def _is_known(name: str) -> str:
    """Refuse a folder without a model, and a path that does not exist: it is no name on the Hub."""
    folder = Path(name)
    if folder.is_dir():
        if not any((folder / file).is_file() for file in ("modules.json", "config.json")):
            raise UsageError(
                f"{name} is not a model folder: it has neither modules.json nor config.json."
            )
    elif folder.is_absolute() or name.startswith((".", "~")):
        raise UsageError(f"There is no folder {name}.")
    return name


def _is_grid_or_model(name: str) -> str:
    """Refuse a file that is no grid; what is not a file is a model."""
    path = Path(name)
    if path.suffix.lower() in (".parquet", ".json"):
        if not path.is_file():
            raise UsageError(f"There is no file {name}.")
        return name
    if path.is_file():
        raise UsageError(
            f"{name} is not a grid, which is a .parquet or .json file. "
            "`st-matryoshka2d grid MODEL --out grid.parquet` writes one."
        )
    return _is_known(name)


def check_writable(path: Path) -> None:
    """Refuse a file or folder that cannot be written, before the work whose result it will hold."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


def output_file(what: str, *suffixes: str) -> Any:
    """Make an option for a file that the command writes."""

    def check(path: Path | None) -> Path | None:
        if path is not None:
            if path.suffix.lower() not in suffixes:
                raise UsageError(f"The name must end in {' or '.join(suffixes)}; got {path}.")
            check_writable(path)
        return path

    help_text = f"{what}: {', '.join(suffixes)}."
    return typer.Option(help=help_text, dir_okay=False, callback=check)


def _is_new(folder: Path) -> Path:
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty. Name a new folder with --out.")
    check_writable(folder)
    return folder


def size_option(what: str) -> Any:
    """Make an option for sizes."""
    return typer.Option(help=what, parser=Size.parse, metavar="SIZE")


def _read_layers(text: str) -> str | list[int]:
    if text in ("first", "ends"):
        return text
    if not all(number.isdigit() for number in text.split(",")):
        raise ValueError(f"expected first, ends or numbers such as 1,5,6, got {text!r}.")
    return [int(number) for number in text.split(",")]


Model = Annotated[
    str,
    typer.Argument(help="Hub id or folder of a sentence-transformers model.", callback=_is_known),
]
GridOrModel = Annotated[
    str,
    typer.Argument(
        help="A grid that `grid` saved; or, without labels, the Hub id or folder of an aligned model.",
        callback=_is_grid_or_model,
    ),
]
Device = Annotated[
    str | None, typer.Option(help="Such as cpu, cuda or mps; by default the fastest available.")
]
Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of MODEL on the Hub; by default main.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with MODEL.")
]
BatchSize = Annotated[int, typer.Option(help="Texts in a batch.", min=1)]
Layers = Annotated[
    Any,
    typer.Option(
        help="Which layers to keep: first, ends (the first and the last ones), or numbers such as "
        "1,5,6. By default those that the model was aligned with.",
        parser=_read_layers,
        metavar="LAYERS",
    ),
]
TextColumn = Annotated[
    list[str] | None,
    typer.Option(help="Column of texts in the files that are tables; may be repeated."),
]
NewFolder = Annotated[
    Path,
    typer.Option(help="New folder to save the model in.", file_okay=False, callback=_is_new),
]
