"""The figure of scores against costs: what is in it, and that it can be read."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from st_matryoshka2d import GridResult
from st_matryoshka2d.evaluation.choice.cost import costs
from tests.choice_support import random_grid, timed, with_scores


def large_grid(precisions: tuple[str, ...]) -> GridResult:
    """12 layers x 8 dims, with the scores that trained models have."""
    layers, dims = tuple(range(1, 13)), (8, 16, 32, 64, 128, 256, 512, 768)
    grid = random_grid(0, layers, dims, precisions, tasks=("A",))
    kept = {"float32": 1.0, "int8": 0.985, "binary": 0.93}
    scored = with_scores(
        grid,
        lambda frame: (
            (0.85 - 0.3 * np.exp(-frame["num_layers"] / 4) - 0.25 * frame["dim"] ** -0.45)
            * (frame["precision"].map(kept) if "precision" in frame else 1)
            + 0.01 * frame["score"]
        ),
    )
    times = pd.DataFrame({"num_layers": layers, "milliseconds_per_text": [1.2 + 0.62 * depth for depth in layers]})
    return scored.with_latency(times)


def labels_of(figure: Figure) -> dict[str, Any]:
    """The names in a figure and where they lie, as its renderer draws them."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    (axes,) = figure.axes
    return {text.get_text(): text.get_window_extent(renderer) for text in axes.texts if text.get_text()}


@pytest.mark.parametrize("cost", ["milliseconds_per_text", "num_layers", "bytes", "dim"])
@pytest.mark.parametrize("precisions", [("float32",), ("float32", "int8", "binary")])
def test_a_figure_names_each_size_of_its_line_and_no_name_lies_over_another(cost: str, precisions: tuple[str, ...]) -> None:
    grid = large_grid(precisions)
    figure = grid.plot_pareto(cost=cost)
    labels = labels_of(figure)
    front = grid.pareto(cost)
    suffix = {"float32": "", "int8": " int8", "binary": " binary"}
    named = {f"{row.num_layers}L-{row.dim}d{suffix[row.precision]}" for row in front.itertuples()}
    assert set(labels) == named
    assert len(named) >= 8
    for one, other in combinations(labels.values(), 2):
        assert not one.overlaps(other)
    area = figure.axes[0].get_window_extent()
    assert all(
        area.x0 <= box.x0 and box.x1 <= area.x1 and area.y0 <= box.y0 and box.y1 <= area.y1 for box in labels.values()
    )
    line = figure.axes[0].get_lines()[0].get_xydata()
    assert line == pytest.approx(front.sort_values(cost)[[cost, "score"]].to_numpy() * [1, 100])


def test_every_scored_size_is_a_point(tmp_path: Path) -> None:
    grid = with_scores(timed(3), lambda frame: frame["score"].where(frame["num_layers"] != 2, np.nan))
    figure = grid.plot_pareto(tmp_path / "front.svg", task="A")
    (axes,) = figure.axes
    table = costs(grid, "A").query("num_layers != 2")
    drawn: dict[bool, set[tuple[float, float]]] = {True: set(), False: set()}
    for points in axes.collections:
        places = np.asarray(points.get_offsets())
        drawn[points.get_alpha() == 1.0] |= {(round(float(x), 6), round(float(y), 6)) for x, y in places}
    front = {
        tuple(place) for place in grid.pareto(task="A")[["milliseconds_per_text", "score"]].mul([1, 100]).round(6).to_numpy()
    }
    every = {tuple(place) for place in table[["milliseconds_per_text", "score"]].mul([1, 100]).round(6).to_numpy()}
    assert drawn[True] == front
    assert drawn[True] | drawn[False] == every
    assert axes.get_xlabel() == "milliseconds a text"
    assert axes.get_ylabel() == "spearman (%)"
    assert axes.get_title() == "A"
    assert "<svg" in (tmp_path / "front.svg").read_text(encoding="utf-8")


def test_one_size_can_be_drawn() -> None:
    alone = random_grid(0, layers=(4,), dims=(64,))
    assert list(labels_of(alone.plot_pareto(title="mine"))) == ["4L-64d"]
