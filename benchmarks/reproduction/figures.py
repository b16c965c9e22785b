"""The papers' figures: maps of differences, scores by depth, and scores after removing coordinates."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from reproduction.tables import alike
from st_matryoshka2d import GridResult

__all__ = ["draw_depths", "draw_grids", "draw_maps", "draw_truncations"]

# Seven colours, each with a marker of its own, in two line styles: fourteen methods that can be
# told apart.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "black"]
_MARKERS = "osD^vPX"
_STYLES = ["-", "--", ":"]


def draw_maps(scores: pd.DataFrame, pairs: list[tuple[str, str]], folder: Path) -> None:
    """Draw the difference between two methods at every size, on seeds that both have (Starbucks' Figures 3-5).

    Args:
        scores: Of tasks of one type: method, seed, task, num_layers, dim, score.
        pairs: Pairs of methods; the second is subtracted from the first.
        folder: Where the figures go.
    """
    for method, other in pairs:
        grids = grids_of(alike(scores, method, other))
        if {method, other} <= set(grids):
            name = f"{method} against {other}"
            grids[method].compare(grids[other]).plot(folder / file_name(name), title=name)


def draw_grids(scores: pd.DataFrame, methods: list[str], folder: Path) -> None:
    """Draw the scores of every size.

    Args:
        scores: As for `draw_maps`.
        methods: Which to draw.
        folder: Where the figures go.
    """
    for method, grid in grids_of(scores).items():
        if method in methods:
            grid.plot(path=folder / file_name(method), title=f"{method}, mean of the tasks")


def file_name(title: str) -> str:
    """Return the file name of a figure with this title."""
    return f"{title.replace(',', '').replace(' ', '_')}.png"


def grids_of(scores: pd.DataFrame) -> dict[str, GridResult]:
    """Build a grid for each method, with means over its seeds."""
    keys = ["method", "task", "num_layers", "dim"]
    means = scores.groupby(keys, observed=True)["score"].mean().reset_index()
    means = means.assign(score=means["score"] / 100, split="test", subset="default", metric="cosine_spearman", is_main=True)
    return {
        str(name): GridResult(frame.drop(columns="method"), model=str(name))
        for name, frame in means.groupby("method", observed=True)
    }


def draw_depths(scores: pd.DataFrame, folder: Path) -> None:
    """Draw the mean score by number of layers at the full width (2DMSE's Figure 4b).

    Args:
        scores: Of tasks of one type: method, num_layers, dim, score.
        folder: Where the figure goes.
    """
    full = scores[scores["dim"] == scores["dim"].max()]
    depths = full["num_layers"].nunique()
    means = full.groupby(["method", "num_layers"], observed=True)["score"].mean().unstack("num_layers").dropna(thresh=depths)
    if means.empty:  # only sizes of the ladder were scored
        return
    figure, axes = plt.subplots(figsize=(9.5, 5.5), layout="constrained")
    looks = dict(zip(means.index, product(_STYLES, zip(_COLOURS, _MARKERS, strict=True)), strict=False))
    # the legend has the lines in their order
    for method in means[depths // 2].sort_values(ascending=False).index:
        style, (colour, marker) = looks[method]
        axes.plot(means.columns, means.loc[method], style, marker=marker, color=colour, markersize=5, label=str(method))
    axes.set(xlabel="layers", ylabel="mean Spearman, percent", title="All dimensions, by depth")
    figure.legend(fontsize="small", loc="outside right upper", handlelength=4, frameon=False)
    figure.savefig(folder / "depths.png", dpi=150)
    plt.close(figure)


def draw_truncations(scores: pd.DataFrame, methods: list[str], folder: Path) -> None:
    """Draw the share of the full score that a prefix and random subsets of the same width keep ("To MRL or not to MRL").

    Args:
        scores: method, truncation, dim, score.
        methods: Which to draw.
        folder: Where the figure goes.
    """
    means = scores.groupby(["method", "truncation", "dim"], observed=True)["score"].mean().reset_index()
    full = means["dim"].max()
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for number, (method, of_method) in enumerate(means[means["method"].isin(methods)].groupby("method", observed=True)):
        whole = of_method.loc[of_method["dim"] == full, "score"].iloc[0]
        kept = of_method.assign(kept=100 * of_method["score"] / whole, removed=100 * (1 - of_method["dim"] / full))
        random = kept["truncation"].str.startswith("random") | (kept["dim"] == full)
        for label, part, style in ((str(method), kept[kept["truncation"] == "first"], "-"), (None, kept[random], ":")):
            line = part.groupby("removed")["kept"].mean()
            axes.plot(line.index, line, style, marker="." if label else None, color=f"C{number}", label=label)
    axes.set(xlabel="coordinates removed, percent", ylabel="share of the full score, percent")
    axes.set_title("Prefix (solid) and random subsets (dotted), all layers")
    axes.legend(fontsize="small", loc="lower left")
    figure.savefig(folder / "truncations.png", dpi=150)
    plt.close(figure)
