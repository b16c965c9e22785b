"""Fronts and curves: points, names, ticks and labels; and every figure's file, which is complete or absent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from st_matryoshka2d import CoordinateSpread, GridResult, TruncationResult, plot_speedup
from st_matryoshka2d.grid.costs import costs
from st_matryoshka2d.grid.truncation_result import truncation_dims
from tests.support.grids import random_grid, timed, with_scores
from tests.support.quick import quick
from tests.support.truncations import SCORES, made_of


def large_grid(precisions: tuple[str, ...]) -> GridResult:
    """Return a grid of 12 layers x 8 dims with scores like those of trained models."""
    layers, dims = tuple(range(1, 13)), (8, 16, 32, 64, 128, 256, 512, 768)
    grid = random_grid(0, layers, dims, precisions, tasks=("A",))
    shares = {"float32": 1.0, "int8": 0.985, "binary": 0.93}

    def scores(frame: pd.DataFrame) -> pd.Series[float]:
        full = 0.85 - 0.3 * np.exp(-frame["num_layers"] / 4) - 0.25 * frame["dim"] ** -0.45
        share = frame["precision"].map(shares) if "precision" in frame else 1
        return full * share + 0.01 * frame["score"]

    times = pd.DataFrame({"num_layers": layers, "milliseconds_per_text": [1.2 + 0.62 * depth for depth in layers]})
    return with_scores(grid, scores).with_latency(times)


def names_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize("cost", ["milliseconds_per_text", "num_layers", "bytes", "dim"])
def test_names_each_size_of_the_line_and_none_lies_over_another(cost: str) -> None:
    grid = large_grid(("float32",))
    figure = grid.plot_pareto(cost=cost)
    front = grid.pareto(cost)
    assert set(names_of(figure)) == {f"{row.num_layers}L-{row.dim}d" for row in front.itertuples()}
    figure.draw_without_rendering()
    (axes,) = figure.axes
    # Slanted alike, so that each needs its height across its direction, and room within the axes.
    across = np.array([np.sin(np.radians(35)), np.cos(np.radians(35))])
    places = [axes.transData.transform(text.xy) for text in axes.texts]
    for place, other in combinations(places, 2):
        assert abs((place - other) @ across) > 8 * figure.dpi / 72 or np.abs(place - other).max() > 80
    for text in axes.texts:
        box = text.get_window_extent()
        assert axes.bbox.x0 < box.x0 < box.x1 < axes.bbox.x1
        assert axes.bbox.y0 < box.y0 < box.y1 < axes.bbox.y1
    line = axes.get_lines()[0].get_xydata()
    assert line == pytest.approx(front.sort_values(cost)[[cost, "score"]].to_numpy() * [1, 100])


def test_every_scored_size_is_a_point(tmp_path: Path) -> None:
    grid = with_scores(timed(3), lambda frame: frame["score"].where(frame["num_layers"] != 2, np.nan))
    figure = grid.plot_pareto(tmp_path / "front.svg", task="A")
    (axes,) = figure.axes
    table = costs(grid.frame, grid.latency, "A").query("num_layers != 2")
    drawn: dict[bool, set[tuple[float, ...]]] = {True: set(), False: set()}
    for points in axes.collections:
        drawn[points.get_alpha() == 1] |= set(map(tuple, np.round(points.get_offsets(), 6).tolist()))
    columns = ["milliseconds_per_text", "score"]
    front, every = (
        set(map(tuple, rows[columns].mul([1, 100]).round(6).to_numpy().tolist()))
        for rows in (grid.pareto("milliseconds_per_text", task="A"), table)
    )
    assert drawn[True] == front
    assert drawn[True] | drawn[False] == every
    assert axes.get_xlabel() == "milliseconds per text"
    assert axes.get_ylabel() == "spearman (%)"
    assert axes.get_title() == "A"
    assert "<svg" in (tmp_path / "front.svg").read_text(encoding="utf-8")


def test_one_size_can_be_drawn() -> None:
    alone = random_grid(0, layers=(4,), dims=(64,)).named("org/model")
    assert names_of(alone.plot_pareto()) == ["4L-64d"]
    assert alone.plot_pareto(title="mine").axes[0].get_title() == "mine"
    assert alone.plot_pareto().axes[0].get_title() == "model: mean of 2 tasks"


def test_legends_lie_beside_the_axes() -> None:
    figure = random_grid(0, dims=(20, 64), precisions=("float32", "int8"), tasks=("A",)).plot_pareto()
    figure.draw_without_rendering()
    boxes = [legend.get_window_extent() for legend in figure.legends]
    for box, other in combinations([*boxes, figure.axes[0].bbox], 2):
        assert not box.overlaps(other)
    texts = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert texts == ["64", "20", "float32", "int8"]


@pytest.mark.parametrize("cost", ["bytes", "dim", "num_layers"])
def test_the_largest_cost_has_a_tick_and_none_overlap(cost: str) -> None:
    figure = large_grid(("float32", "int8", "binary")).plot_pareto(cost=cost)
    figure.draw_without_rendering()
    labels = figure.axes[0].xaxis.get_majorticklabels()
    largest = {"bytes": 3072, "dim": 768, "num_layers": 12}[cost]
    assert max(float(label.get_text()) for label in labels) == largest
    assert len(labels) >= 5
    for label, other in combinations(labels, 2):
        assert not label.get_window_extent().overlaps(other.get_window_extent())


def test_overlapping_sizes_share_a_name() -> None:
    same = random_grid(0, dims=(16, 64), precisions=("float32", "int8"))
    figure = with_scores(same, lambda frame: 0.2 * frame["num_layers"]).plot_pareto()
    assert set(names_of(figure)) == {f"{depth}L-16d int8 and 3 more" for depth in (1, 2, 4)}


TIMES = pd.DataFrame(
    {"num_layers": [1, 2], "milliseconds_per_text": [1.0, 2.0], "speedup": [2.0, 1.0], "theory": [2.0, 1.0]}
)


DRAWN: dict[str, Callable[[Any], Figure]] = {
    "grid": lambda path: random_grid(0).plot(path),
    "pareto": lambda path: random_grid(0).plot_pareto(path),
    "comparison": lambda path: random_grid(0).named("one").compare(random_grid(1).named("other")).plot(path),
    "truncation": lambda path: made_of(SCORES).plot(path),
    "spread": lambda path: CoordinateSpread(np.linspace(1, 0, 32), num_layers=6, num_texts=50).plot(path),
    "speed-up": lambda path: plot_speedup(TIMES, path),
}


@pytest.mark.parametrize("what", DRAWN)
def test_an_unknown_format_is_refused_before_anything_is_drawn(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matplotlib.figure.Figure, "add_subplot", lambda *_, **__: pytest.fail("drawn"))
    for name in ("figure.xyz", "figure"):
        with pytest.raises(ValueError, match=rf"must end with one of .*\.pdf, .*\.png, .*\.svg.*; got '.*{name}'"):
            DRAWN[what](str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", quick(DRAWN, "grid", "speed-up"))
def test_a_figure_goes_to_a_new_folder_too(what: str, tmp_path: Path) -> None:
    DRAWN[what](tmp_path / "new" / "figure.SVG")
    assert "<svg" in (tmp_path / "new" / "figure.SVG").read_text(encoding="utf-8")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["figure.SVG"]


def test_a_figure_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(figure: Figure, path: Path, **_: object) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    (tmp_path / "grid.png").write_text("before")
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", full)
    with pytest.raises(OSError, match=r"No space left on device.*grid\.png"):
        random_grid(0).plot(tmp_path / "grid.png")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


@pytest.fixture
def result() -> TruncationResult:
    return made_of(SCORES)


def assert_labels_do_not_overlap(figure: Figure) -> None:
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw(renderer)
    for panel in figure.axes:
        for axis in (panel.xaxis, *(child.xaxis for child in panel.child_axes)):
            labels = [*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)]
            texts = [label for label in labels if label.get_text()]
            boxes = [label.get_window_extent(renderer) for label in texts]
            assert len(boxes) > 2
            assert not any(box.overlaps(other) for box, other in combinations(boxes, 2))


def test_the_figure_has_a_line_for_each_method_and_a_band_for_each_spread(result: TruncationResult, tmp_path: Path) -> None:
    figure = result.plot(tmp_path / "curves.png", task="A")
    (panel,) = figure.axes
    # the first line is at 100 %
    lines: dict[Any, Any] = {line.get_label(): line.get_xydata() for line in panel.lines[1:]}
    assert lines["first coordinates"] == pytest.approx(np.array([[0, 100], [50, 95.5556], [75, 66.6667]]), abs=1e-3)
    assert lines["random coordinates (3, mean ± s.d.)"] == pytest.approx(np.array([[50, 90], [75, 68.8889]]), abs=1e-3)
    assert lines["windows"] == pytest.approx(np.array([[50, 77.7778], [75, 33.3333]]), abs=1e-3)
    assert lines["principal components"] == pytest.approx(np.array([[0, 102.2222], [50, 97.7778]]), abs=1e-3)
    (band,) = panel.collections
    heights = {tuple(np.round(corner, 3)) for corner in np.asarray(band.get_paths()[0].vertices)}
    spread = np.std([0.50, 0.66, 0.70], ddof=1) / 0.9 * 100
    assert {(50.0, 91.111), (50.0, 88.889), (75.0, round(68.8889 + spread, 3))} <= heights
    assert figure.get_suptitle() == "model: A, 3 layers"
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == set(lines)
    assert (tmp_path / "curves.png").stat().st_size > 10_000


@pytest.mark.parametrize("full_dim", quick([384, 768, 1024], 1024))
def test_the_dims_above_the_figure_do_not_overlap(full_dim: int) -> None:
    dims = truncation_dims(full_dim)
    scores = {(name, dim): (0.5,) for name in ("first", "random-0", "random-1") for dim in dims}
    figure = made_of(scores).plot()
    assert_labels_do_not_overlap(figure)
    (above,) = figure.axes[0].child_axes
    told = [int(label.get_text()) for label in above.get_xticklabels()]
    assert {full_dim, 256, 128, 64} <= set(told) <= set(dims)
    assert above.get_xticks() == pytest.approx([100 - 100 * dim / full_dim for dim in told])
