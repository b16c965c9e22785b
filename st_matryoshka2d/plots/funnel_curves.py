"""What is kept of a search when a small size makes the shortlist."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure

from st_matryoshka2d.sizes import Size

__all__ = ["funnel_curves"]

_ABOVE = "Above 100: what the first stage leaves out, the second size alone would rank too high."

_STYLES = [("-", "o"), ("--", "s"), (":", "D"), ("-.", "^")]


def funnel_curves(shares: pd.DataFrame, vector_bytes: Mapping[str, int], *, title: str, label: str) -> Figure:
    """A line for each first size: colours are sizes, the widest darkest, and kinds of lines are precisions.

    Args:
        shares: Percent by first size (rows, smallest vectors first) and length of the shortlist (columns, ascending).
        vector_bytes: Bytes of a vector of each first size.
        title: Above the figure.
        label: What the percents are.
    """
    figure = Figure(figsize=(7.5, max(4.5, 1.5 + 0.22 * len(shares))), layout="constrained")
    axes = figure.add_subplot()
    names = [str(name) for name in shares.index[::-1]]
    by_width = sorted({name.split()[0] for name in names}, key=lambda size: (Size.parse(size).dim, Size.parse(size)))
    # the palest tenth of the map is hard to see on white
    colours = dict(zip(by_width, colormaps["viridis_r"](np.linspace(0.1, 1, len(by_width))), strict=True))
    precisions = sorted({name.partition(" ")[2] for name in names})  # float32 goes without saying, and comes first
    styles = dict(zip(precisions, cycle(_STYLES), strict=False))
    lengths = shares.columns.to_numpy()
    for name in names:
        size, _, precision = name.partition(" ")
        line, marker = styles[precision]
        axes.plot(
            lengths,
            shares.loc[name].to_numpy(),
            color=colours[size],
            linestyle=line,
            marker=marker,
            markersize=4.5,
            linewidth=1.6,
            label=f"{name} ({vector_bytes[name]} bytes)",
        )
    axes.axhline(100, color="0.4", linewidth=1.0, linestyle=":", zorder=1)
    if (shares > 100).any(axis=None):
        figure.supxlabel(_ABOVE, fontsize=7.5, color="0.3")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="documents in the shortlist", ylabel=label, title=title)
    axes.grid(axis="y", color="0.93")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(title="first stage", loc="outside right upper", frameon=False, handlelength=3.2)
    return figure
