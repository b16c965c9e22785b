"""Which of two models is better at which layers and dims, as coloured cells."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure

from st_matryoshka2d.plots.heat_map import coloured_cells
from st_matryoshka2d.plots.style import add_note

__all__ = ["delta_map"]

_LEAST_RANGE = 2.0  # what the darkest colours stand for at least: a few tenths of a point must not look dramatic


def delta_map(
    deltas: pd.DataFrame, texts: pd.DataFrame, *, title: str, label: str, names: tuple[str, str], note: str
) -> Figure:
    """Blue where the first of two models is better, red where the other is (Starbucks, Figures 3 to 9); NaN is grey."""
    values = deltas.to_numpy(dtype=float)
    known = np.abs(values[np.isfinite(values)])
    norm = CenteredNorm(halfrange=max([_LEAST_RANGE, *known]))
    figure, bar = coloured_cells(deltas, texts, colours="RdBu", norm=norm)
    width, height = figure.get_size_inches()
    note = textwrap.fill(note, int(18 * width))
    ends = [f"{textwrap.fill(name, 16)}\nbetter" for name in names]
    lines = sum(len(text.splitlines()) for text in (*ends, note))
    axes = figure.axes[0]
    if len(title) <= 9 * (width - 1.2):  # inches of the map alone
        axes.set_title(title)
    else:
        title = textwrap.fill(title, int(11 * (width - 0.8)))
        # over the words at the end of the bar, with room for the bar below it
        axes.set_title(title, loc="left", fontsize="medium", pad=14 + 11 * len(ends[0].splitlines()))
        lines += 1 + len(title.splitlines())
    figure.set_size_inches(width, height + 0.12 * lines)
    axes.set_facecolor("0.8")  # white is a cell without a difference
    bar.set_label(label)
    # 9 points away, because the number at the very end of the bar is half as high.
    bar.ax.annotate(ends[0], (0, 1), (0, 9), "axes fraction", "offset points", va="bottom", fontsize=8.5)
    bar.ax.annotate(ends[1], (0, 0), (0, -9), "axes fraction", "offset points", va="top", fontsize=8.5)
    add_note(figure, note)
    return figure
