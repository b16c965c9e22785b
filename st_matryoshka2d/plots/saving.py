"""Save figures atomically, in known formats only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.atomic import check_writable_file, replace_file


def saved(path: str | os.PathLike[str] | None, draw: Callable[[], Figure]) -> Figure:
    """Draw a figure and write it, unless the path is None; a path that cannot be written is refused before."""
    if path is None:
        return draw()
    known = sorted(Figure().canvas.get_supported_filetypes())
    if Path(path).suffix.lower().removeprefix(".") not in known:
        raise UsageError(f"A figure file must end with one of .{', .'.join(known)}; got {str(path)!r}.")
    check_writable_file(path)
    figure = draw()
    replace_file(path, lambda part: figure.savefig(part, dpi=200, bbox_inches="tight"))
    return figure
