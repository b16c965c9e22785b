"""The figure of scores against costs: contents and legibility."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from st_matryoshka2d import GridResult
from st_matryoshka2d.grid.costs import costs
from tests.support.grids import random_grid, timed, with_scores
from tests.support.quick import quick


def large_grid(precisions: tuple[str, ...]) -> GridResult:
    """Return a grid of 12 layers x 8 dims with scores like those of trained models."""
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
    """Return the labels in a figure and their rendered positions."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    (axes,) = figure.axes
    return {text.get_text(): text.get_window_extent(renderer) for text in axes.texts if text.get_text()}


NAMED = list(product(["milliseconds_per_text", "num_layers", "bytes", "dim"], [("float32",), ("float32", "int8", "binary")]))


@pytest.mark.parametrize(("cost", "precisions"), quick(NAMED, NAMED[1]))
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
    table = costs(grid.frame, grid.latency, "A").query("num_layers != 2")
    drawn: dict[bool, set[tuple[float, float]]] = {True: set(), False: set()}
    for points in axes.collections:
        places = np.asarray(points.get_offsets())
        drawn[points.get_alpha() == 1.0] |= {(round(float(x), 6), round(float(y), 6)) for x, y in places}
    on_line = grid.pareto("milliseconds_per_text", task="A")
    front = {tuple(place) for place in on_line[["milliseconds_per_text", "score"]].mul([1, 100]).round(6).to_numpy()}
    every = {tuple(place) for place in table[["milliseconds_per_text", "score"]].mul([1, 100]).round(6).to_numpy()}
    assert drawn[True] == front
    assert drawn[True] | drawn[False] == every
    assert axes.get_xlabel() == "milliseconds per text"
    assert axes.get_ylabel() == "spearman (%)"
    assert axes.get_title() == "A"
    assert "<svg" in (tmp_path / "front.svg").read_text(encoding="utf-8")


def test_one_size_can_be_drawn() -> None:
    alone = random_grid(0, layers=(4,), dims=(64,))
    figure = alone.named("org/model").plot_pareto(title="mine")
    assert list(labels_of(figure)) == ["4L-64d"]
    assert figure.axes[0].get_title() == "mine"
    assert alone.named("org/model").plot_pareto().axes[0].get_title() == "model: mean of 2 tasks"


def assert_within_the_figure(figure: Figure) -> None:
    """Check that all legends lie within the figure and nothing overlaps."""
    boxes = [legend.get_window_extent() for legend in figure.legends] + [figure.axes[0].get_window_extent()]
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize(
    ("precisions", "dims", "told"), [(("float32",), (64,), []), (("float32", "int8"), (20, 64), ["beaten"])]
)
def test_legends_lie_beside_the_axes(precisions: tuple[str, ...], dims: tuple[int, ...], told: list[str]) -> None:
    grid = with_scores(
        random_grid(0, dims=dims, precisions=precisions, tasks=("A",)),
        lambda frame: 0.1 * frame["num_layers"] + frame["dim"],
    )
    figure = grid.plot_pareto()
    figure.draw_without_rendering()
    assert_within_the_figure(figure)
    texts = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert texts == [*map(str, dims[::-1]), *(precisions if len(precisions) > 1 else ()), *told]


TICKED = list(product(["bytes", "dim", "num_layers"], [(8, 16, 384), (8, 16, 32, 64, 128, 256, 512, 768), (64,)]))


@pytest.mark.parametrize(("cost", "dims"), quick(TICKED, *TICKED[1:3]))
def test_each_cost_that_there_is_has_a_tick(cost: str, dims: tuple[int, ...]) -> None:
    grid = random_grid(0, layers=range(1, 17), dims=dims, precisions=("float32", "int8", "binary"), tasks=("A",))
    figure = grid.plot_pareto(cost=cost)
    figure.draw_without_rendering()
    axis = figure.axes[0].xaxis
    values = set(costs(grid.frame, grid.latency)[cost])
    assert {*axis.get_majorticklocs(), *axis.get_minorticklocs()} == values
    labels = axis.get_majorticklabels()
    assert {float(label.get_text()) for label in labels} >= {min(values), max(values)}
    assert len(labels) >= min(len(values), 5)
    assert not any(a.get_window_extent().overlaps(b.get_window_extent()) for a, b in combinations(labels, 2))


def test_overlapping_sizes_share_label() -> None:
    same = random_grid(0, dims=(16, 64), precisions=("float32", "int8"))
    figure = with_scores(same, lambda frame: 0.2 * frame["num_layers"]).plot_pareto()
    assert set(labels_of(figure)) == {f"{depth}L-16d int8 and 3 more" for depth in (1, 2, 4)}
