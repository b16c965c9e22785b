"""Save figures atomically, in known formats only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from st_matryoshka2d.files import replace_file


def check_ending(path: str | os.PathLike[str] | None) -> None:
    """Refuse a file of unknown format before anything is drawn."""
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path is not None and Path(path).suffix.lower().removeprefix(".") not in known:
        raise ValueError(f"The suffix of a figure file must be one of .{', .'.join(known)}; got {os.fspath(path)!r}.")


def save_figure(figure: Figure, path: str | os.PathLike[str] | None) -> None:
    """Write a figure, unless the path is None."""
    if path is not None:
        replace_file(path, lambda part: figure.savefig(part, dpi=200, bbox_inches="tight"))


def saved(path: str | os.PathLike[str] | None, draw: Callable[[], Figure]) -> Figure:
    """Draw a figure and write it, unless the path is None; an unknown suffix is refused before anything is drawn."""
    check_ending(path)
    figure = draw()
    save_figure(figure, path)
    return figure
