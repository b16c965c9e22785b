"""Heat maps of layers by dims: scores of a model, or differences of two."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import CenteredNorm, Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure

from st_matryoshka2d.plots.style import new_figure

# Black is easy to read on all of it.
_DELTAS = ListedColormap(colormaps["RdBu"](np.linspace(0.25, 0.75, 256)))

_DARK = 43.3  # percents below it have a colour on which white has more contrast than black (WCAG 2)


def heat_map(scores: pd.DataFrame, texts: pd.DataFrame, title: str, label: str, ylabel: str = "layers") -> Figure:
    """Draw percents by layers (downwards as in tables) and dims, with the text of each cell.

    A colour stands for the same percent in every figure, so that two of them can be compared.
    """
    return _cells(scores, texts, colormaps["viridis"], Normalize(0, 100), title, label, ylabel, dark=_DARK)


def delta_map(deltas: pd.DataFrame, texts: pd.DataFrame, title: str, note: str) -> Figure:
    """Draw differences in points, blue where the first model is better, with a note; NaN has no colour."""
    # At least two points for the darkest colours: a few tenths must not look dramatic.
    reach = np.fmax.reduce(np.abs(deltas.to_numpy(dtype=float)), axis=None, initial=2.0)
    figure = _cells(deltas, texts, _DELTAS, CenteredNorm(halfrange=reach), title, "points")
    lines = textwrap.wrap(note, int(18 * figure.get_figwidth()))
    figure.set_figheight(figure.get_figheight() + 0.14 * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=7.5, color="0.3")
    return figure


def _cells(
    table: pd.DataFrame,
    texts: pd.DataFrame,
    colours: Colormap,
    norm: Normalize,
    title: str,
    label: str,
    ylabel: str = "layers",
    dark: float = -np.inf,
) -> Figure:
    """Draw a coloured cell with a text for each number; the ink is white where the number is below `dark`."""
    rows, columns = table.shape
    width = 2.2 + 0.68 * columns
    fits = len(title) <= 9 * (width - 1.2)  # the width of the map alone
    lines = [title] if fits else textwrap.wrap(title, int(11 * (width - 0.8)))
    figure = new_figure(width, 1.3 + 0.46 * rows + (0 if fits else 0.2 * len(lines)))
    axes = figure.add_subplot(facecolor="0.92", xlabel="dimensions", ylabel=ylabel)
    axes.set_title("\n".join(lines), loc="center" if fits else "left", fontsize="medium")
    values = table.to_numpy(dtype=float)
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, norm=norm, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        ink = "white" if value < dark else "black" if np.isfinite(value) else "0.25"
        axes.text(column, row, str(texts.iat[row, column]), ha="center", va="center", color=ink, fontsize=8.5)
    axes.set_xticks(range(columns), [str(dim) for dim in table.columns])
    axes.set_yticks(range(rows), [str(layers) for layers in table.index])
    axes.tick_params(length=0)
    axes.hlines(np.arange(rows + 1) - 0.5, -0.5, columns - 0.5, "white")
    axes.vlines(np.arange(columns + 1) - 0.5, -0.5, rows - 0.5, "white")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label=label).outline.set_visible(False)
    return figure
