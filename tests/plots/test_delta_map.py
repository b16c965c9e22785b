"""The figure of differences: colour range, and a title without overlap."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from st_matryoshka2d.plots.heat_map import delta_map
from tests.support.grids import pairs_grid, random_grid
from tests.support.quick import quick


@pytest.mark.parametrize(("largest", "reach"), [(0.4, 2.0), (1.0, 2.0), (3.5, 3.5), (float("nan"), 2.0)])
def test_small_differences_are_pale(largest: float, reach: float) -> None:
    deltas = pd.DataFrame([[-0.1, largest]], index=[6], columns=[64, 384])
    (image,) = delta_map(deltas, deltas.astype(str), title="T", label="points", note="").axes[0].images
    assert (image.norm.vmin, image.norm.vmax) == (-reach, reach)


@pytest.mark.parametrize(("n", "coloured"), [(20, False), (300, True)])
def test_what_is_not_significant_has_no_colour_nor_has_anything_on_few_examples(n: int, coloured: bool) -> None:
    noise = {"1L-8d": 1.5, "2L-8d": 1.0}
    better = pairs_grid(noise | {"1L-8d": 0.2}, n).named("better")
    comparison = better.compare(pairs_grid(noise, n).named("worse"))
    assert comparison.to_frame()["significant"].tolist() == [True, False]
    figure = comparison.plot()
    (image,) = figure.axes[0].images
    assert np.ma.getmaskarray(image.get_array()).tolist() == [[not coloured], [True]]
    assert f"A {n}" in " ".join(figure.get_supxlabel().split())


def test_a_colour_is_one_score_in_every_heat_map() -> None:
    images = [random_grid(seed).plot().axes[0].images[0] for seed in (0, 1)]
    assert {(image.norm.vmin, image.norm.vmax) for image in images} == {(0, 100)}


@pytest.mark.parametrize(("columns", "letters"), quick(product([1, 3, 8], [1, 20, 30, 60, 85]), (1, 85), (8, 1)))
def test_a_long_title_keeps_clear_of_the_other_words(columns: int, letters: int) -> None:
    deltas = pd.DataFrame([[1.0] * columns] * 3, index=[2, 4, 6], columns=range(columns))
    title = ("a rather long task name " * 4)[:letters].strip()
    figure = delta_map(deltas, deltas.astype(str), title=title, label="points", note="* p < 0.05")
    figure.draw_without_rendering()
    axes, bar = figure.axes
    titles = [text for text in axes.findobj(Text) if " ".join(text.get_text().split()) == title]
    assert len(titles) == 1
    ticks = bar.get_yticklabels()  # ticks beyond the bar are not drawn
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in ticks]
    for one, other in combinations(texts, 2):
        assert not one.get_window_extent().shrunk(0.98, 0.95).overlaps(other.get_window_extent().shrunk(0.98, 0.95))
    box = titles[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1 + 1


def test_numbers_are_easy_to_read_on_every_difference() -> None:
    """WCAG AAA, 7 to 1: black on mid-blue would pass AA, and is hard to read."""
    deltas = pd.DataFrame([np.linspace(-4, 4, 9)], index=[6])
    (axes, _) = delta_map(deltas, deltas.astype(str), title="T", label="points", note="").axes
    (image,) = axes.images
    colours = np.asarray(image.to_rgba(np.asarray(image.get_array())))[0, :, :3]
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    contrast = (linear @ [0.2126, 0.7152, 0.0722] + 0.05) / 0.05
    assert {text.get_color() for text in axes.texts} == {"black"}
    assert contrast.min() >= 7
