"""Arguments and options that several commands share: one name for each thing."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer

from st_matryoshka2d import Size
from st_matryoshka2d.errors import UsageError

_READ = (".csv", ".tsv", ".jsonl", ".txt")  # and .parquet
TABLES = ".csv, .tsv, .jsonl or .parquet"
VECTORS = ".npy, .parquet or a folder of .parquet"
TEXTS = f"{TABLES}; .txt with a text a line; or a folder of .txt with a text each"


# Callbacks refuse a call before anything slow is imported.
def _is_model(name: str) -> str:
    """Refuse a folder without a model, and a path that does not exist: it is no name on the Hub."""
    folder = Path(name)
    if folder.is_dir():
        if not any((folder / file).is_file() for file in ("modules.json", "config.json")):
            raise UsageError(f"{name} is no model: it has neither modules.json nor config.json.")
    elif folder.is_absolute() or name.startswith((".", "~")):
        raise UsageError(f"There is no folder {name}.")
    return name


def is_grid_or_model(name: str) -> str:
    """Refuse a file that is no grid; what is not a file is a model."""
    path, is_grid = Path(name), name.lower().endswith((".parquet", ".json"))
    if path.suffix.lower() in (".parquet", ".json", *_READ) and not path.is_file():
        raise UsageError(f"There is no file {name}.")
    if path.is_file() and not is_grid:
        how = "`st-matryoshka2d grid MODEL --out grid.parquet` writes one"
        raise UsageError(f"{name} is not a grid, which is a .parquet or .json file: {how}.")
    return name if is_grid else _is_model(name)


def check_writable(path: Path) -> None:
    """Refuse a file or folder that cannot be written, before the work whose result it will hold."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


def _is_new(folder: Path) -> Path:
    """Refuse a folder that has something in it, or cannot be made."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty. Name a new folder with --out.")
    check_writable(folder)
    return folder


def _read_layers(text: str) -> str | list[int]:
    """Read a choice of layers; typer shows the error with the name of the option."""
    if text in ("first", "ends", "spread"):
        return text
    if not all(number.isdigit() for number in text.split(",")):
        raise ValueError(f"expected first, ends, spread or numbers such as 1,5,6, got {text!r}.")
    return [int(number) for number in text.split(",")]


def output_file(what: str, *suffixes: str) -> Any:
    """Make an option for a file that the command writes."""

    def check(path: Path | None) -> Path | None:
        if path is not None:
            if path.suffix.lower() not in suffixes:
                raise UsageError(f"The name must end in {' or '.join(suffixes)}; got {path}.")
            check_writable(path)
        return path

    described = f"{what}: {', '.join(suffixes)}."
    return typer.Option(help=described, dir_okay=False, callback=check)


def input_file(what: str, kinds: str = TABLES) -> Any:
    """Make an option for files or folders that the command reads."""
    return typer.Option(help=f"{what}: {kinds}.", exists=True)


def size_option(what: str) -> Any:
    """Make an option for sizes."""
    return typer.Option(help=what, parser=Size.parse, metavar="SIZE")


def cut_option(what: str) -> Any:
    """Make an option for a size, or a number of layers with all dimensions."""

    def read(text: str) -> Size | int:
        layers = text.strip().lower().removesuffix("l")
        return int(layers) if layers.isdecimal() else Size.parse(text)

    return typer.Option(help=what, parser=read, metavar="SIZE")


_MODEL = "Hub id or folder of a sentence-transformers model."
_GRID = "A grid that `grid` saved; or, without labels, the Hub id or folder of an aligned model."
_TRUST = typer.Option("--trust-remote-code", help="Run code that comes with MODEL.")
_COLUMN = (
    "Column of texts, in files that are tables, by default text; repeat it for several. A column title "
    "is put before the column text, as in a search."
)
_LAYERS = (
    "Which layers to keep: first, ends (the first and the last ones), spread (evenly, with the last), or numbers such as "
    "1,5,6; by default those that the model was aligned or trained with, otherwise ends."
)
_OUT = "New folder to save the model in."

Model = Annotated[str, typer.Argument(help=_MODEL, callback=_is_model)]
GridOrModel = Annotated[str, typer.Argument(help=_GRID, callback=is_grid_or_model)]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda; by default the fastest.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of MODEL on the Hub.")]
TrustRemoteCode = Annotated[bool, _TRUST]
BatchSize = Annotated[int, typer.Option(help="Texts in a batch.", min=1)]
Layers = Annotated[Any, typer.Option(help=_LAYERS, parser=_read_layers, metavar="LAYERS")]
TextColumn = Annotated[list[str] | None, typer.Option(help=_COLUMN)]
NewFolder = Annotated[Path, typer.Option(help=_OUT, file_okay=False, callback=_is_new)]
