"""Scores of two-stage search, where a small size makes the shortlist."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

import pandas as pd
from matplotlib.figure import Figure

from st_matryoshka2d.plots.style import add_note, new_figure, plain, shades
from st_matryoshka2d.sizes import Size

_ABOVE = "Above 100: the first stage leaves out documents that the second size alone would rank too high."

_STYLES = [("-", "o"), ("--", "s"), (":", "D"), ("-.", "^")]


def funnel_curves(shares: pd.DataFrame, vector_bytes: Mapping[str, int], *, title: str, label: str) -> Figure:
    """Draw a line for each first size: colours show sizes, the widest darkest, and line styles show precisions."""
    figure = new_figure(7.5, max(4.5, 1.5 + 0.22 * len(shares)))
    axes = plain(figure.add_subplot(), xlabel="documents in the shortlist", ylabel=label, title=title)
    names = [str(name) for name in shares.index[::-1]]
    by_width = sorted({name.split()[0] for name in names}, key=lambda size: (Size.parse(size).dim, Size.parse(size)))
    colours = shades(by_width)
    precisions = sorted({name.partition(" ")[2] for name in names})  # empty for float32, which comes first
    styles = dict(zip(precisions, cycle(_STYLES), strict=False))
    lengths = shares.columns.to_numpy()
    for name in names:
        size, _, precision = name.partition(" ")
        line, marker = styles[precision]
        look = {"color": colours[size], "linestyle": line, "marker": marker, "markersize": 4.5, "linewidth": 1.6}
        axes.plot(lengths, shares.loc[name].to_numpy(), label=f"{name} ({vector_bytes[name]} bytes)", **look)
    axes.axhline(100, color="0.4", linewidth=1.0, linestyle=":", zorder=1)
    if (shares > 100).any(axis=None):
        add_note(figure, _ABOVE)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_xticks([], minor=True)
    figure.legend(title="first stage", loc="outside right upper", frameon=False, handlelength=3.2)
    return figure
