"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from st_matryoshka2d.files.atomic import check_writable_file
from st_matryoshka2d.sizes import Size

Grid = Annotated[
    Path, typer.Argument(help="A grid that was saved as .parquet or .json.", show_default=False, exists=True, dir_okay=False)
]
NumLayers = Annotated[list[int] | None, typer.Option(help="Layers to keep; may be repeated.", min=0, show_default="all")]
Metric = Annotated[
    str | None,
    typer.Option(help="Metric of mteb to use, such as mrr_at_10 or recall_at_100.", show_default="each task's main metric"),
]
BatchSize = Annotated[int, typer.Option(help="Texts in a batch.", min=1)]


def _read_layers(text: str) -> str | list[int]:
    if text in ("first", "ends"):
        return text
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"Give first, ends or numbers such as 1,5,6; got {text!r}.") from None


_LAYERS = "Which layers to keep: first, ends (the first and the last ones), or numbers such as 1,5,6."
Layers = Annotated[
    Any | None,
    typer.Option(help=_LAYERS, parser=_read_layers, metavar="<layers>", show_default="the model's choice, otherwise first"),
]


def file_option(name: str, what: str, suffixes: tuple[str, ...], folder: str = "", **settings: Any) -> Any:
    """Option for a file whose suffix selects the format, or a folder of something; others are refused before any work."""
    return typer.Option(name, **_ending_with(suffixes, what, folder), **settings)


def file_argument(what: str, suffixes: tuple[str, ...], folder: str = "") -> Any:
    """Argument for an existing file whose suffix selects the format, or for a folder of something."""
    return typer.Argument(**_ending_with(suffixes, what, folder), exists=True, show_default=False)


def _ending_with(suffixes: tuple[str, ...], what: str, folder: str) -> dict[str, Any]:
    ending = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"

    def check(given: Any) -> Any:
        for path in given if isinstance(given, (list, tuple)) else [given]:
            if path is not None and path.suffix.lower() not in suffixes and not (folder and path.is_dir()):
                raise typer.BadParameter(f"The file name must end with {ending}, got {str(path)!r}.")
        return given

    told = f"{what}: {ending}{folder and f', or a folder of {folder}'}."
    return {"help": told, "dir_okay": bool(folder), "callback": check}


def figure_option(what: str) -> Any:
    """Option for a figure."""
    return file_option("--plot", what, (".png", ".svg", ".pdf"), writable=True)


def check_outputs(*files: Path | None) -> None:
    """Refuse files that cannot be written, before the work."""
    for path in files:
        if path is not None:
            check_writable_file(path)


def size_option(what: str, *name: str, **settings: Any) -> Any:
    """Option for a size such as 6L-128d."""
    return typer.Option(*name, help=what, parser=_read_size, metavar="<size>", **settings)


def _read_size(text: str) -> Size:
    try:
        return Size.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
