"""Save figures atomically, in known formats only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from st_matryoshka2d.files.atomic import check_writable_file, replace_file


def check_figure_file(path: str | os.PathLike[str] | None) -> None:
    """Refuse a file of unknown format, or one that cannot be written, before anything is drawn."""
    if path is None:
        return
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if Path(path).suffix.lower().removeprefix(".") not in known:
        raise ValueError(f"The suffix of a figure file must be one of .{', .'.join(known)}; got {os.fspath(path)!r}.")
    check_writable_file(path)


def save_figure(figure: Figure, path: str | os.PathLike[str] | None) -> None:
    """Write a figure, unless the path is None."""
    if path is not None:
        replace_file(path, lambda part: figure.savefig(part, dpi=200, bbox_inches="tight"))


def saved(path: str | os.PathLike[str] | None, draw: Callable[[], Figure]) -> Figure:
    """Draw a figure and write it, unless the path is None; check first that it can be written."""
    check_figure_file(path)
    figure = draw()
    save_figure(figure, path)
    return figure
