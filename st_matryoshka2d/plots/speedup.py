"""Speed-up of shallower models, in theory and measured."""

from __future__ import annotations

import os

import pandas as pd
from matplotlib.figure import Figure

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.plots.saving import saved
from st_matryoshka2d.plots.style import BLUE, new_figure, plain

_COLUMNS = ["num_layers", "milliseconds_per_text", "speedup", "theory"]


def plot_speedup(times: pd.DataFrame, path: str | os.PathLike[str] | None = None, title: str | None = None) -> Figure:
    """Plot the speed-up over the full model at each depth, in theory and measured (2DMSE, Figure 4a).

    The gap is time that does not depend on depth: tokenisation, embeddings and pooling.

    Args:
        times: The table that `benchmark_latency` returns.
        path: File to save the figure to, as `.png`, `.svg` or `.pdf`; None to only return it.
        title: Title of the figure; None for none.

    Raises:
        ValueError: A column is missing, there are no rows, or the file suffix is unknown.

    Example:
        >>> from st_matryoshka2d import benchmark_latency
        >>> times = benchmark_latency(model, num_layers=[2, 4], batch_size=4, rounds=3, show_progress_bar=False)
        >>> figure = plot_speedup(times, "speedup.png")
    """
    if times.empty or not set(_COLUMNS) <= set(times.columns):
        columns = ", ".join(times.columns)
        raise UsageError(f"Expected the table of benchmark_latency, got {len(times)} rows of {columns}.")
    return saved(path, lambda: _drawn(times.sort_values("num_layers"), title or ""))


def _drawn(times: pd.DataFrame, title: str) -> Figure:
    figure = new_figure(2.4 + 0.6 * max(len(times), 4), 4.2)
    axes = plain(figure.add_subplot(), title=title, ylabel="speed-up over the full model")
    axes.set_xlabel("layers, and the measured time of a text")
    layers = times["num_layers"].to_numpy()
    axes.plot(layers, times["theory"], "o--", color="0.55", markersize=4, label="theory: N / layers")
    axes.plot(layers, times["speedup"], "o-", color=BLUE, markersize=5, label="measured")
    for depth, speedup, theory in zip(layers, times["speedup"], times["theory"], strict=True):
        place, side = ((3, 3), "left") if speedup >= theory else ((-3, -10), "right")  # beside both lines
        axes.annotate(f"{speedup:.2f}x", (depth, speedup), place, ha=side, textcoords="offset points", fontsize=8)
    labels = times["milliseconds_per_text"].map("{:.3g} ms".format)
    axes.set_xticks(layers, [f"{depth}\n{time}" for depth, time in zip(layers, labels, strict=True)], fontsize=8)
    axes.margins(x=0.11, y=0.08)  # room for the label of the first point
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure
