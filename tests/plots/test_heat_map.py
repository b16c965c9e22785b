"""Heat maps of a grid and of a comparison: texts, colours in one scale, ink, and room for every word."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from st_matryoshka2d import GridResult
from st_matryoshka2d.plots.heat_map import delta_map
from tests.support.grids import model_grid, pairs_grid, random_grid, with_scores
from tests.support.quick import quick


def deltas_of(deltas: pd.DataFrame, title: str = "T", note: str = "") -> Figure:
    return delta_map(deltas, deltas.astype(str), title, note)


def image_of(figure: Figure) -> tuple[Any, list[list[bool]]]:
    """The image of the cells, and which cells have no colour."""
    (image,) = figure.axes[0].images
    return image, np.ma.getmaskarray(image.get_array()).tolist()


def cells_of(figure: Figure) -> dict[tuple[int, ...], str]:
    return {tuple(map(round, text.get_position())): text.get_text() for text in figure.axes[0].texts}


def contrasts(figure: Figure) -> dict[str, float]:
    """The least contrast of each ink with the cells that it stands on (WCAG 2)."""
    image, _ = image_of(figure)
    colours = image.to_rgba(np.asarray(image.get_array()))[..., :3]
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722] + 0.05
    least: dict[str, float] = {}
    for text in figure.axes[0].texts:
        x, y = map(round, text.get_position())
        ink = str(text.get_color())
        contrast = 1.05 / luminance[y, x] if ink == "white" else luminance[y, x] / 0.05
        least[ink] = min(contrast, least.get(ink, np.inf))
    return least


def test_each_scored_cell_is_drawn_and_no_other(tmp_path: Path) -> None:
    ladder = random_grid(0, (2, 4, 6), (32, 64, 128), tasks=("A",)).to_frame().query("dim == 16 * num_layers or dim == 128")
    ladder = ladder.query("num_layers == 2 and dim == 32 or num_layers == 4 and dim == 64 or num_layers == 6")
    grid = with_scores(GridResult(ladder), lambda rows: rows["score"].where(rows["num_layers"] != 4))
    figure = grid.plot(tmp_path / "ladder.png")
    axes, bar = figure.axes
    written = {place: text for place, text in cells_of(figure).items() if text}
    assert written.keys() == {(0, 0), (1, 1), (2, 2)}
    assert float(written[0, 0]) == pytest.approx(grid.score("2L-32d") * 100, abs=0.005 + 1e-9)
    assert written[1, 1] == "nan"
    assert image_of(figure)[1] == [[False, True, True], [True, True, True], [True, True, False]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "64", "128"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["2", "4", "6"]
    assert axes.yaxis_inverted()  # the fewest layers on top, as in the tables
    assert bar.get_ylabel() == "spearman (%)"
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")
    assert grid.plot(title="mine").axes[0].get_title() == "mine"
    across = GridResult(grid.frame.assign(documents="6L-128d"))
    assert [each.plot().axes[0].get_ylabel() for each in (grid, across)] == ["layers", "query layers"]


@pytest.mark.parametrize(
    ("model", "named"), [("", ""), ("unnamed/model", ""), ("org/all-MiniLM-L6-v2", "all-MiniLM-L6-v2: ")]
)
def test_the_title_names_the_model_if_it_is_known(model: str, named: str) -> None:
    grid = GridResult(random_grid(0, dims=(8, 16, 32, 64, 128, 256), tasks=("A",)).frame, model=model)
    assert grid.plot().axes[0].get_title() == f"{named}A"


def test_a_colour_is_one_score_in_every_heat_map() -> None:
    images = [random_grid(seed).plot().axes[0].images[0] for seed in (0, 1)]
    assert {(image.norm.vmin, image.norm.vmax) for image in images} == {(0, 100)}


@pytest.mark.parametrize(("largest", "reach"), [(0.4, 2.0), (1.0, 2.0), (3.5, 3.5), (float("nan"), 2.0)])
def test_small_differences_are_pale(largest: float, reach: float) -> None:
    image, _ = image_of(deltas_of(pd.DataFrame([[-0.1, largest]], index=[6], columns=[64, 384])))
    assert (image.norm.vmin, image.norm.vmax) == (-reach, reach)


@pytest.mark.parametrize(("n", "coloured"), [(20, False), (300, True)])
def test_what_is_not_significant_has_no_colour_nor_has_anything_on_few_examples(n: int, coloured: bool) -> None:
    noise = {"1L-8d": 1.5, "2L-8d": 1.0}
    better = pairs_grid(noise | {"1L-8d": 0.2}, n).named("better")
    comparison = better.compare(pairs_grid(noise, n).named("worse"))
    assert comparison.to_frame()["significant"].tolist() == [coloured, False]
    figure = comparison.plot()
    assert image_of(figure)[1] == [[not coloured], [True]]
    assert f"A {n}" in " ".join(figure.get_supxlabel().split())


def test_a_comparison_shows_which_model_is_better(tmp_path: Path) -> None:
    ours, mixed = model_grid("lab/ours", {"A": 0.1, "B": 0.4}, 0), model_grid("lab/mixed", {"A": 0.4, "B": 0.1}, 1)
    comparison = ours.compare(mixed)
    for task, blue in (("A", True), ("B", False)):
        figure = comparison.plot(tmp_path / f"{task}.png", task=task)
        image, empty = image_of(figure)
        colours = image.to_rgba(np.asarray(image.get_array()))
        assert empty == [[False, False], [True, False]]
        assert all((colours[y, x, 2] > colours[y, x, 0]) == blue for y, x in ((0, 0), (0, 1), (1, 1)))
        assert image.norm.vmax == -image.norm.vmin == pytest.approx(np.abs(comparison.pivot(task)).max().max() * 100)
        assert figure.axes[1].get_ylabel() == "points"
        assert cells_of(figure)[0, 1] == ""
        assert cells_of(figure)[0, 0] == f"{comparison.pivot(task)[32][2] * 100:+.2f}*"
        assert "* p < 0.05 (jackknife; Holm over 6 tests)." in " ".join(figure.get_supxlabel().split())
        assert (tmp_path / f"{task}.png").read_bytes().startswith(b"\x89PNG")
    assert comparison.plot(title="mine").axes[0].get_title() == "mine"
    assert "\n1:1/2" in comparison.plot().axes[0].texts[0].get_text()
    ours.compare(ours).plot()


def test_numbers_are_easy_to_read_on_every_colour() -> None:
    """WCAG AA for scores, of which two inks give 4.58 at least; AAA for differences: black on mid-blue would pass AA."""
    scores = random_grid(0, range(1, 13), range(8, 72, 8), tasks=("A",))
    rising = np.linspace(-0.1, 1.1, len(scores.frame))
    least = contrasts(with_scores(scores, lambda rows: rising).plot())
    assert least.keys() == {"black", "white"}
    assert min(least.values()) >= 4.5
    deltas = contrasts(deltas_of(pd.DataFrame([np.linspace(-4, 4, 9)], index=[6])))
    assert deltas.keys() == {"black"}
    assert deltas["black"] >= 7


def compared(sizes: list[str]) -> Figure:
    names = ("lab/all-MiniLM-L6-v2-two-dimensional", "lab/all-MiniLM-L6-v2-matryoshka")
    ours, theirs = (model_grid(name, {"A": 0.1 + seed, "B": 1 - seed}, seed, sizes) for seed, name in enumerate(names))
    return ours.compare(theirs).plot()


def named(columns: int) -> Figure:
    grid = random_grid(0, (1, 2), range(8, 8 * columns + 8, 8), tasks=("NanoClimateFEVERRetrieval",))
    return grid.named("org/paraphrase-multilingual-mpnet-base-v2-aligned").plot()


def titled(columns: int, letters: int) -> Figure:
    deltas = pd.DataFrame([[1.0] * columns] * 3, index=[2, 4, 6], columns=range(columns))
    return deltas_of(deltas, ("a rather long task name " * 4)[:letters].strip(), "* p < 0.05")


@pytest.mark.parametrize(
    ("draw", "given"),
    [
        (compared, (["6L-384d"],)),
        (compared, ([f"{n}L-{d}d" for n in (2, 4, 6) for d in (8, 16, 32, 64, 128, 256, 384)],)),
        *((named, (columns,)) for columns in (1, 2, 8)),
        *((titled, case) for case in ((1, 85), (8, 1))),
        *quick((titled, case) for case in product([1, 3, 8], [1, 20, 30, 60, 85])),
    ],
)
def test_no_word_lies_over_another_or_beyond_the_figure(draw: Callable[..., Figure], given: tuple[Any, ...]) -> None:
    figure = draw(*given)
    figure.draw_without_rendering()
    axes, bar = figure.axes
    ticks = bar.get_yticklabels()  # ticks beyond the bar are not drawn
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in ticks]
    boxes = [text.get_window_extent() for text in texts]
    for box, other in combinations(boxes, 2):
        assert not box.shrunk(0.98, 0.95).overlaps(other.shrunk(0.98, 0.95))
    for box in boxes:
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1 + 1
    (title,) = (text for text in axes.findobj(Text) if text in texts and text.get_text() in _titles(axes))
    assert title.get_window_extent().y0 > axes.get_window_extent().y1


def _titles(axes: Any) -> set[str]:
    return {axes.get_title(loc) for loc in ("left", "center")} - {""}
