"""Draw the figures of the README and of the pages into docs/images.

python docs/tools/draw_concepts.py
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from st_matryoshka2d.sizes import Size, ladder_to

IMAGES = Path(__file__).resolve().parents[1] / "images"
KEPT, GONE, TEACHER, INK = "#0072B2", "#E4E7EA", "#E69F00", "#333333"
FULL = Size(6, 384)  # all-MiniLM-L6-v2
TASKS = {"scifact": "SciFact", "mlquestions": "MLQuestions"}
ENDS = (1, 5, 6)  # the layers that a cut to three keeps
RESULTS = IMAGES.parents[1] / "benchmarks" / "results" / "reproduce"


def draw_kept() -> Figure:
    """Draw what each size keeps of the whole model's score: by two free choices of layers, and aligned."""
    panels = {
        "first layers": RESULTS / "100x64-ends/scores/sts.cut.0.csv",
        "first and last layers": RESULTS / "100x64-ends/scores/sts.first_and_last_layers.0.csv",
        "first and last layers, aligned": RESULTS / "100x64-ends/scores/sts.cut_aligned.0.csv",
    }
    figure = Figure(figsize=(12.4, 3.6), layout="constrained")
    for axes, (title, path) in zip(figure.subplots(1, 3, sharey=True), panels.items(), strict=True):
        scores = pd.read_csv(path).pivot_table(index="num_layers", columns="dim", values="score")
        kept = 100 * scores.to_numpy(dtype=float) / scores.to_numpy(dtype=float)[-1, -1]
        norm = Normalize(50, 100)
        axes.imshow(kept, cmap="viridis", norm=norm, aspect="auto")
        for (row, column), value in np.ndenumerate(kept):
            ink = "black" if value > 70 else "white"  # whichever has more contrast on this map
            axes.text(column, row, f"{value:.0f}%", ha="center", va="center", color=ink)
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("dimensions")
        axes.set_xticks(range(len(scores.columns)), map(str, scores.columns))
        axes.set_yticks(range(len(scores)), map(str, scores.index))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.axes[0].set_ylabel("layers")
    return figure


def draw_half() -> Figure:
    """Draw what queries by half of the layers, or by a token table, keep of search in documents that no fit has read."""
    halves = {"all-MiniLM-L6-v2": "3 of 6", "all-mpnet-base-v2": "6 of 12", "multilingual-e5-small": "6 of 12"}
    ways = {
        "not aligned": ("first and last layers, as they are", GONE),
        "heal": ("healed", KEPT),
        "align": ("aligned", "#8CC4E6"),
        "fit_queries": ("no layer: a token table", TEACHER),
    }
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, 2, sharey=True), TASKS.items(), strict=True):
        for row, model in enumerate(halves):
            table = pd.read_csv(RESULTS.parent / "unseen" / f"{model}.csv")
            table = table[(table["set"] == name) & (table["part"] == "unseen") & (table["share"] == 0.5)]
            kept = table[table["questions"] <= 5000].sort_values("questions").groupby("verb")["kept"].last()
            for place, (verb, (label, colour)) in enumerate(ways.items()):
                if verb in kept:
                    bar = axes.bar(row + 0.21 * (place - 1.5), kept[verb], 0.19, color=colour, label=label)
                    axes.bar_label(bar, fmt="%.0f", color=INK, fontsize=9)
        axes.set_xticks(range(len(halves)), [f"{model}\n{layers} layers" for model, layers in halves.items()], fontsize=9)
        axes.set_title(f"{title}: share of the whole model's nDCG@10, %", fontsize=11, color=INK, pad=14)
        axes.spines[["top", "right"]].set_visible(False)
        named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw_cut() -> Figure:
    """Draw a model and its cut to 3L-64d, block by block and coordinate by coordinate."""
    figure = Figure(figsize=(8.4, 4.9), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, size, title in zip(panels, (FULL, Size(3, 64)), ("the full size, 6L-384d", "its cut, 3L-64d"), strict=True):
        axes.set(xlim=(-0.2, 12.2), ylim=(-0.9, 10.4), title=title)
        axes.axis("off")
        first = f"all {FULL.dim}" if size == FULL else f"the first {size.dim} of {FULL.dim}"
        _block(axes, 0, "words to vectors", KEPT)
        for layer in range(1, FULL.num_layers + 1):
            kept = size == FULL or layer in ENDS
            _block(axes, layer, f"layer {layer}" if kept else "", KEPT if kept else GONE)
        _block(axes, FULL.num_layers + 1, "final norm (where there is one), pooling, ...", KEPT)
        for number in range(12):  # each square stands for 32 coordinates
            kept = number < 12 * size.dim // FULL.dim
            axes.add_patch(Rectangle((number, 8.7), 0.9, 0.7, facecolor=KEPT if kept else GONE))
        axes.text(6, 9.75, f"embedding: {first} coordinates", ha="center", color=INK, fontsize=9)
        axes.text(6, -0.6, "text", ha="center", color=INK, fontsize=9)
    panels[1].text(6, 3.5, "not run, not saved", ha="center", va="center", color=INK, fontsize=9)
    return figure


def draw_queries() -> Figure:
    """Draw documents that the whole model embeds once, and a query that a table or a few layers embed, in one space."""
    figure = Figure(figsize=(5.6, 3.2), layout="constrained")
    axes = figure.add_subplot(xlim=(-1.2, 38.5), ylim=(-1.4, 9.2))
    axes.axis("off")
    sides = [
        (0, "documents, once", [f"layer {layer}" for layer in range(1, 7)], KEPT),
        (22, "each query", ["token table"], TEACHER),
        (31, "or few layers", ["layer 1", "", "", "", "layer 5", "layer 6"], TEACHER),
    ]
    for left, text, blocks, colour in sides:
        for row, block in enumerate(blocks):
            look: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.2", "edgecolor": "none"}
            place = (left, row * 1.2 + 0.4)
            axes.add_patch(FancyBboxPatch(place, 7, 1, facecolor=colour if block else GONE, **look))
            axes.text(
                left + 3.5,
                row * 1.2 + 0.9,
                block,
                ha="center",
                va="center",
                color="white" if colour == KEPT else "black",
                fontsize=10.5,
            )
        axes.text(left + 3.5, -0.7, text, ha="center", color=INK, fontsize=10.5)
        top = len(blocks) * 1.2 + 0.3
        end = (8.7, 8.3) if left == 0 else (20.6, top + 0.6)
        arrow = {"arrowstyle": "->", "color": INK, "connectionstyle": f"arc3,rad={-0.2 if left == 0 else 0.2}"}
        axes.annotate("", end, (left + 3.5, top), arrowprops=arrow)
    axes.add_patch(Rectangle((9.2, 0.4), 10.9, 8.6, facecolor="none", edgecolor="#999999"))
    axes.text(14.6, -0.7, "one index", ha="center", color=INK, fontsize=10.5)
    drawn = random.Random(5)
    for _ in range(16):
        axes.scatter([drawn.uniform(10, 19.3)], [drawn.uniform(1, 8.4)], color=KEPT, s=26, alpha=0.7)
    axes.scatter([14.6], [5.3], color=TEACHER, s=90, marker="*", zorder=3)
    axes.scatter([14.6], [5.3], s=900, facecolor="none", edgecolor=TEACHER)
    return figure


def draw_sizes_of_a_step() -> Figure:
    """Draw the sizes that a training step of each recipe uses, on a grid of layers by dims."""
    dims = [16, 32, 64, 128, 256, 384]
    ladder, last = ladder_to(FULL), FULL.num_layers
    panels: list[tuple[str, Iterable[Size], Iterable[Size]]] = [
        ("StarbucksLoss, RelationalDistillLoss\nthe ladder, in every step", ladder, [FULL]),
        ("TwoDMSELoss\none layer and one dim, drawn in each step", [Size(3, 64), Size(3, 384), Size(6, 64)], [FULL]),
        ("EspressoLoss\none dim, at every layer", [Size(layer, 128) for layer in range(1, last + 1)], [FULL]),
        ("MIPICLoss\nall dims of the last layer, and a chain", [Size(last, dim) for dim in dims], []),
    ]
    figure = Figure(figsize=(8.4, 7.2), layout="constrained")
    for axes, (title, trained, also) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        _grid(axes, dims, title)
        for sizes, colour in ((trained, KEPT), (also, TEACHER)):
            for size in sizes:
                place = (dims.index(size.dim), size.num_layers - 1)
                axes.add_patch(Rectangle((place[0] - 0.5, place[1] - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
        if title.startswith("MIPIC"):
            axes.plot(range(len(ladder)), [size.num_layers - 1 for size in ladder], "o-", color=TEACHER, linewidth=1.5)
    return figure


def draw_truncations() -> Figure:
    """Draw ways to keep 8 of 24 coordinates."""
    full, kept = 24, 8
    drawn = random.Random(3)
    subsets: list[tuple[str, Sequence[int]]] = [
        ("prefix: the first", range(kept)),
        ("window: a later stretch", range(11, 11 + kept)),
    ]
    subsets[1:1] = [(name, drawn.sample(range(full), kept)) for name in ("a random subset", "another random subset")]
    figure = Figure(figsize=(8.4, 2.2), layout="constrained")
    axes = figure.add_subplot(xlim=(-9.5, full), ylim=(-0.2, len(subsets)))
    axes.axis("off")
    for row, (name, chosen) in enumerate(reversed(subsets)):
        axes.text(-0.4, row + 0.4, name, ha="right", va="center", color=INK, fontsize=9.5)
        for number in range(full):
            axes.add_patch(Rectangle((number, row), 0.88, 0.8, facecolor=KEPT if number in chosen else GONE))
    return figure


def draw_alignment() -> Figure:
    """Draw five texts at three depths, in the space of each depth and in the shared space after the readouts."""
    texts = [(0.0, 1.5), (0.4, 1.1), (1.3, -0.2), (-1.4, 0.2), (-0.7, -1.2)]
    colours = ["#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7"]
    drawn = random.Random(1)
    # layers, angle, width, error of a readout
    depths = [(1, 2.2, 0.55, 0.22), (3, -1.3, 0.75, 0.12), (6, 0.0, 1.0, 0.0)]
    figure = Figure(figsize=(8.4, 5.6), layout="constrained")
    panels = figure.subplots(2, 3)
    for column, (layers, angle, width, error) in enumerate(depths):
        turned = [
            (width * (x * math.cos(angle) - y * math.sin(angle)), x * math.sin(angle) + y * math.cos(angle))
            for x, y in texts
        ]
        read = [(x + drawn.gauss(0, error), y + drawn.gauss(0, error)) for x, y in texts]
        for axes, points in zip(panels[:, column], (turned, read), strict=True):
            axes.set(xlim=(-2.1, 2.1), ylim=(-2.1, 2.1), xticks=[], yticks=[], aspect="equal")
            axes.spines[:].set_color(GONE)
            for (x, y), colour, name in zip(points, colours, "abcde", strict=True):
                axes.scatter([x], [y], color=colour, s=130)
                axes.text(x, y, name, ha="center", va="center_baseline", color="white", fontsize=8)
        panels[0, column].set_title(f"{layers} layer{'s' if layers > 1 else ''}", fontsize=10)
        name = "R" if layers == FULL.num_layers else f"M_{layers}"
        panels[1, column].set_title(f"${name}$ ↓", fontsize=11, color=INK)
    panels[0, 0].set_ylabel("cut: a space for each depth", fontsize=10, color=INK)
    panels[1, 0].set_ylabel("aligned: one space", fontsize=10, color=INK)
    return figure


def draw_healing() -> Figure:
    """Draw how far the states within a cut are from those of the whole model, before and after healing."""
    table = pd.read_csv(RESULTS.parent / "healing_states" / "all-MiniLM-L6-v2.csv")
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    axes = figure.add_subplot(ylabel="error, % of the state")
    read_by = ["layer 5 reads\n(layer 4 is missing)", "layer 6 reads", "the pooling reads"]
    for place, (name, label, colour) in enumerate((("cut", "as it is", GONE), ("healed", "healed", KEPT))):
        errors = table[table["model"] == name].sort_values("layer")["error"]
        bars = axes.bar([row + 0.38 * (place - 0.5) for row in range(3)], errors, 0.36, color=colour, label=label)
        axes.bar_label(bars, fmt="%.0f", color=INK)
    axes.set_xticks(range(3), read_by)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_unseen() -> Figure:
    """Draw what queries by a token table keep of search, by the share of the documents that it has read."""
    table = pd.read_csv(RESULTS.parent / "unseen" / "all-MiniLM-L6-v2.csv").query("verb == 'fit_queries'")
    figure = Figure(figsize=(8.4, 3.3), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, 2, sharey=True), TASKS.items(), strict=True):
        of_set = table[table["set"] == name]
        counts = sorted(of_set["questions"][of_set["share"] == 0.1].unique())
        for count, style in zip(counts, ("o:", "o--", "o-"), strict=False):
            for part, colour in (("seen", KEPT), ("unseen", TEACHER)):
                line = of_set[(of_set["questions"] == count) & (of_set["part"] == part)].sort_values("share")
                told = f"{count:,} real questions" if count else "no real question"
                label = f"documents {'' if part == 'seen' else 'not '}read, {told}"
                axes.plot(100 * line["share"], line["kept"], style, color=colour, label=label, markersize=4)
        axes.set(title=title, xlabel="documents in the fit, %")
        axes.grid(color=GONE)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7, handlelength=4)
    figure.axes[0].set_ylabel("share of the whole model's nDCG@10, %")
    return figure


def _block(axes: Axes, row: int, text: str, colour: str) -> None:
    box = FancyBboxPatch(
        (0.4, row + 0.1), 11.1, 0.8, boxstyle="round,pad=0,rounding_size=0.2", facecolor=colour, edgecolor="none"
    )
    axes.add_patch(box)
    axes.text(6, row + 0.5, text, ha="center", va="center", color="white", fontsize=9)


def _grid(axes: Axes, dims: list[int], title: str) -> None:
    for column in range(len(dims)):
        for row in range(FULL.num_layers):
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=GONE, edgecolor="white"))
    axes.set_title(title, fontsize=10)
    axes.set(xlim=(-0.5, len(dims) - 0.5), ylim=(-0.5, FULL.num_layers - 0.5), xlabel="dim", ylabel="layers", aspect="equal")
    axes.set_xticks(range(len(dims)), map(str, dims))
    axes.set_yticks(range(FULL.num_layers), map(str, range(1, FULL.num_layers + 1)))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


if __name__ == "__main__":
    for name, figure in (
        ("half", draw_half()),
        ("kept", draw_kept()),
        ("cut", draw_cut()),
        ("queries", draw_queries()),
        ("sizes_of_a_step", draw_sizes_of_a_step()),
        ("truncations", draw_truncations()),
        ("alignment", draw_alignment()),
        ("healing", draw_healing()),
        ("unseen", draw_unseen()),
    ):
        figure.savefig(IMAGES / f"{name}.png", dpi=130, metadata={"Software": None})
