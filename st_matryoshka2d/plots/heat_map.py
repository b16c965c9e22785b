"""A table of layers and dims as coloured cells."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from st_matryoshka2d.plots.style import new_figure

__all__ = ["coloured_cells", "heat_map"]


def heat_map(scores: pd.DataFrame, texts: pd.DataFrame, *, title: str, label: str) -> Figure:
    """Scores by layers (rows) and dims (columns) as coloured cells, each with its text; NaN is grey."""
    values = scores.to_numpy(dtype=float)
    known = values[np.isfinite(values)]
    norm = Normalize(known.min(), known.max()) if known.size else Normalize(0, 1)
    figure, bar = coloured_cells(scores, texts, colours="viridis", norm=norm)
    figure.axes[0].set_title(title)
    bar.set_label(label)
    return figure


def coloured_cells(table: pd.DataFrame, texts: pd.DataFrame, *, colours: str, norm: Normalize) -> tuple[Figure, Colorbar]:
    """The cells, the texts in them, and a bar of the colours, without words."""
    values = table.to_numpy(dtype=float)
    rows, columns = values.shape
    figure = new_figure(2.2 + 0.68 * columns, 1.3 + 0.46 * rows)
    axes = figure.add_subplot(facecolor="0.95")
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, norm=norm, origin="lower", aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        ink = _ink(colours, float(norm(value))) if np.isfinite(value) else "0.4"
        axes.text(column, row, str(texts.iat[row, column]), ha="center", va="center", color=ink, fontsize=8.5)
    axes.set_xticks(range(columns), [str(dim) for dim in table.columns])
    axes.set_yticks(range(rows), [str(layers) for layers in table.index])
    # The lines between the cells are the grid of the minor ticks.
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="dimensions", ylabel="layers")
    bar = figure.colorbar(image, ax=axes)
    bar.outline.set_visible(False)
    return figure, bar


def _ink(colours: str, position: float) -> str:
    """Black or white, whichever stands out more from a colour of the map."""
    red, green, blue, _ = (channel**2.2 for channel in colormaps[colours](position))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    # Contrast is (lighter + 0.05) / (darker + 0.05) in WCAG 2; black and white are equally good at 0.179.
    return "black" if luminance > 0.179 else "white"
