"""The figures of truncations: lines, bands and labels."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from st_matryoshka2d import TruncationResult
from st_matryoshka2d.grid.truncation_result import truncation_dims
from tests.support.quick import quick
from tests.support.truncations import SCORES, made_of


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
            assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_the_figure_has_a_line_for_each_method_and_a_band_for_each_spread(result: TruncationResult, tmp_path: Path) -> None:
    figure = result.plot(tmp_path / "curves.png", task="A")
    (panel,) = figure.axes
    lines: dict[Any, Any] = {line.get_label(): line.get_xydata() for line in panel.lines[1:]}  # the first line is at 100 %
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


def test_many_dims_are_thinned_out_above_the_figure() -> None:
    scores = {(name, dim): (0.5,) for name in ("first", "random-0", "random-1") for dim in range(8, 385, 8)}
    assert_labels_do_not_overlap(made_of(scores).plot())
