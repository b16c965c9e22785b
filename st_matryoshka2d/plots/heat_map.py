"""Heat maps of layers by dims: scores of a model, or differences of two."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colorbar import Colorbar
from matplotlib.colors import CenteredNorm, Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure

from st_matryoshka2d.plots.style import add_note, new_figure

_SCORES = colormaps["viridis"]
_DELTAS = ListedColormap(colormaps["RdBu"](np.linspace(0.25, 0.75, 256)))  # black is easy to read on all of it

_LEAST_RANGE = 2.0  # least difference for the darkest colours: a few tenths of a point must not look dramatic


def heat_map(scores: pd.DataFrame, texts: pd.DataFrame, *, title: str, label: str) -> Figure:
    """Draw scores by layers (rows, downwards as in tables) and dims (columns), each cell with its text; NaN is grey."""
    values = scores.to_numpy(dtype=float)
    known = values[np.isfinite(values)]
    norm = Normalize(known.min(), known.max()) if known.size else Normalize(0, 1)
    figure, bar = _coloured_cells(scores, texts, colours=_SCORES, norm=norm)
    bar.set_label(label)
    _grow(figure, 0.2 * _set_title(figure, title))
    return figure


def delta_map(
    deltas: pd.DataFrame, texts: pd.DataFrame, *, title: str, label: str, names: tuple[str, str], note: str
) -> Figure:
    """Draw blue where the first model is better, red where the second is (Starbucks, Figures 3 to 9); NaN is grey."""
    norm = CenteredNorm(halfrange=np.fmax.reduce(np.abs(deltas.to_numpy(dtype=float)), axis=None, initial=_LEAST_RANGE))
    figure, bar = _coloured_cells(deltas, texts, colours=_DELTAS, norm=norm)
    note = textwrap.fill(note, int(18 * figure.get_figwidth()))
    ends = [f"{textwrap.fill(name, 16)}\nbetter" for name in names]
    lines = sum(len(text.splitlines()) for text in (*ends, note))
    lines += _set_title(figure, title, pad=14 + 11 * len(ends[0].splitlines()))  # above the text at the end of the bar
    _grow(figure, 0.12 * lines)
    figure.axes[0].set_facecolor("0.8")  # white is a cell without a difference
    bar.set_label(label)
    # 9 points away: room for the number at the very end of the bar.
    bar.ax.annotate(ends[0], (0, 1), (0, 9), "axes fraction", "offset points", va="bottom", fontsize=8.5)
    bar.ax.annotate(ends[1], (0, 0), (0, -9), "axes fraction", "offset points", va="top", fontsize=8.5)
    add_note(figure, note)
    return figure


def _set_title(figure: Figure, title: str, pad: float = 8) -> int:
    """Set a title, small and in lines if it is wider than the map; return for how many lines the figure must grow."""
    axes, width = figure.axes[0], figure.get_figwidth()
    if len(title) <= 9 * (width - 1.2):  # width of the map alone
        axes.set_title(title)
        return 0
    lines = textwrap.wrap(title, int(11 * (width - 0.8)))
    axes.set_title("\n".join(lines), loc="left", fontsize="medium", pad=pad)
    return 1 + len(lines)


def _grow(figure: Figure, inches: float) -> None:
    figure.set_figheight(figure.get_figheight() + inches)


def _coloured_cells(
    table: pd.DataFrame, texts: pd.DataFrame, *, colours: Colormap, norm: Normalize
) -> tuple[Figure, Colorbar]:
    """Draw the cells, their texts, and a colour bar without a label."""
    values = table.to_numpy(dtype=float)
    rows, columns = values.shape
    figure = new_figure(2.2 + 0.68 * columns, 1.3 + 0.46 * rows)
    axes = figure.add_subplot(facecolor="0.95")
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, norm=norm, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        ink = _ink(colours, float(norm(value))) if np.isfinite(value) else "0.25"
        axes.text(column, row, str(texts.iat[row, column]), ha="center", va="center", color=ink, fontsize=8.5)
    axes.set_xticks(range(columns), [str(dim) for dim in table.columns])
    axes.set_yticks(range(rows), [str(layers) for layers in table.index])
    # The grid of the minor ticks draws the lines between the cells.
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="dimensions", ylabel="layers")
    bar = figure.colorbar(image, ax=axes)
    bar.outline.set_visible(False)
    return figure, bar


def _ink(colours: Colormap, position: float) -> str:
    """Return black or white, whichever has more contrast with a colour of the map."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colours(position)[:3]]
    luminance = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
    # Contrast is (lighter + 0.05) / (darker + 0.05) in WCAG 2. Both inks have 4.58 at 0.179, so the better one never less.
    return "black" if luminance > 0.179 else "white"
