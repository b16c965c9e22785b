"""A report in a browser without a network: what it draws, where, and what its sliders mark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from st_matryoshka2d import GridResult
from st_matryoshka2d.grid import pivots
from tests.support.browser import Page, browser

pytestmark = pytest.mark.slow

BOXES = """[...document.querySelectorAll('{}')].map((element) => {{
  const box = element.getBoundingClientRect();
  return [box.left, box.top, box.right, box.bottom]; }})"""
SET = """(() => {{ const slider = document.getElementById('{}'); slider.value = {};
  slider.dispatchEvent(new Event('input', {{ bubbles: true }})); }})()"""
CHOSEN = "[...document.querySelectorAll('td.chosen, i.chosen')].map((mark) => mark.dataset.size)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def reports(grid: GridResult, trained: GridResult, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A report of one grid and one of two."""
    folder = tmp_path_factory.mktemp("reports")
    grid.report(folder / "1.html")
    grid.report(folder / "2.html", beside=[trained])
    return {number: folder / f"{number}.html" for number in (1, 2)}


def luminance(colour: str) -> float:
    """The relative luminance of `rgb(22, 24, 26)` or `color(srgb 0.1 0.1 0.1)`, by WCAG 2."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", colour)[:3]]
    red, green, blue = ((n if "srgb" in colour else n / 255) ** 2.2 for n in numbers)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("grids", [1, 2])
@pytest.mark.parametrize("width", [390, 1024, 1280, 1440])
def test_charts_fit_their_figures_as_the_page_opens(page: Page, reports: dict[int, Path], width: int, grids: int) -> None:
    page.size(width, 900)
    page.open(reports[grids])
    figures = page.run(BOXES.format("figure"))
    charts = page.run(BOXES.format("figure table, .plot"))
    assert len(figures) == len(charts) == grids + 3
    for (left, top, right, bottom), chart in zip(figures, charts, strict=True):
        assert 0 <= left <= chart[0] < chart[2] <= right <= width
        assert top <= chart[1] < chart[3] <= bottom
        assert bottom - chart[3] <= 60  # the numbers below an axis, and no empty room
    for number, (left, top, right, bottom) in enumerate(figures):
        for other in figures[:number]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    page.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    for row in page.run(BOXES.format("details tr")):
        assert row[3] - row[1] < 40, "a word or a number is broken"
    for ticks in (".x", ".y"):
        for box in page.run(BOXES.format(f".plot {ticks}")):
            assert 0 <= box[0] < box[2] <= width
    assert page.run("document.documentElement.scrollWidth") <= width
    assert set(page.asked) <= {path.as_uri() for path in reports.values()}
    assert page.errors == []


def test_shows_every_score_in_one_scale(page: Page, reports: dict[int, Path], grid: GridResult, trained: GridResult) -> None:
    page.open(reports[2])
    texts = "[...document.querySelectorAll('.map td')].map((cell) => cell.textContent.trim())"
    both = [100 * score for scored in (grid, trained) for score in scored.pivot().to_numpy().ravel()]
    assert page.run(texts) == [f"{score:.1f}" for score in both]
    shades = page.run("[...document.querySelectorAll('.map td')].map((td) => parseFloat(td.style.cssText.slice(5)))")
    order = sorted(range(len(both)), key=lambda place: both[place])
    assert [shades[place] for place in order] == sorted(shades)
    assert pivots.metric_name(grid.frame) in page.run("document.querySelector('.plot').parentElement.textContent")
    assert page.run("document.querySelectorAll('.plot')[2].textContent.includes('512')")


def test_sliders_mark_what_recommend_returns(
    page: Page, reports: dict[int, Path], grid: GridResult, trained: GridResult
) -> None:
    page.open(reports[2])
    for share, stop, most in ((97, 2, 512), (85, 2, 512), (60, 1, 256)):
        page.run(SET.format("share", share - 50))
        page.run(SET.format("bytes", stop))
        best = [scores.recommend(share / 100, max_bytes=most) for scores in (grid, trained)]
        said = page.run("[...document.querySelectorAll('.answer span')].map((p) => p.textContent)")
        assert said == list(map(str, best))
        marked = {f"{number} {choice.size}" for number, choice in enumerate(best)}
        assert set(page.run(CHOSEN)) == marked
        assert len(page.run(CHOSEN)) == 8  # a cell and three points of each model
        assert page.run("document.forms[0].innerText").count(f"{share} %") == 1
    page.run("document.getElementById('share').focus()")
    page.press("Home")
    assert page.run("document.getElementById('share-text').textContent") == "50 %"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_can_be_read(page: Page, reports: dict[int, Path], scheme: str) -> None:
    page.size(1280, 900, scheme)
    page.open(reports[2])
    paper = {"light": 1.0, "dark": luminance("rgb(18, 18, 18)")}[scheme]
    for place in ("p", ".plot .x"):
        ink = luminance(page.run(f"getComputedStyle(document.querySelector('{place}')).color"))
        assert (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05) > 4.5, place
    cells: Any = page.run(
        "[...document.querySelectorAll('.map td')].map((td) => [getComputedStyle(td).color, "
        "getComputedStyle(td).backgroundColor])"
    )
    for colours in cells:
        darker, lighter = sorted(map(luminance, colours))
        assert (lighter + 0.05) / (darker + 0.05) > 4.5, colours
