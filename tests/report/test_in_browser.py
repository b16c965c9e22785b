"""A report in a browser without a network: what it draws, tells, recommends and saves."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from st_matryoshka2d import GridResult
from st_matryoshka2d.grid import pivots
from tests.support.browser import Page, browser

pytestmark = pytest.mark.slow

CELLS = (
    "[...document.querySelectorAll('#maps figure:nth-child({}) .mark-text.role-mark text')].map(cell => cell.textContent)"
)
SET = "(() => {{ const one = document.getElementById('{}'); one.value = '{}'; one.dispatchEvent(new Event('{}')); }})()"
TOLD = "[...document.querySelectorAll('#recommended p')].map(line => line.textContent)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(grid: GridResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    grid.report(file)
    return file


@pytest.fixture
def shown(page: Page, report: Path) -> Page:
    page.size(1280, 1000)
    page.open(report)
    return page


def luminance(colour: str) -> float:
    """The relative luminance of a colour such as `rgb(22, 24, 26)`, by WCAG 2, but for the darkest shades."""
    red, green, blue = ((int(channel) / 255) ** 2.2 for channel in re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_draws_every_size_and_asks_for_nothing(shown: Page, grid: GridResult, report: Path) -> None:
    for task in (None, "A", "B"):
        shown.run(SET.format("task", task or "mean of 2 tasks", "change"))
        scores = [number for row in pivots.percent(grid.frame, task).to_numpy() for number in row]
        until(lambda scores=scores: sorted(shown.run(CELLS.format(1))) == sorted(scores))
    assert shown.run("document.querySelectorAll('#fronts figure').length") == 2
    assert shown.run("document.querySelectorAll('#fronts figure:first-child .dots_marks path').length") == 9
    assert set(shown.asked) == {report.as_uri()}
    assert shown.errors == []


def test_the_pointer_shows_score_interval_and_costs(shown: Page, grid: GridResult) -> None:
    table = grid.recommend().to_frame().set_index(["num_layers", "dim"])
    place = "(() => { const box = document.querySelector('#maps [aria-label^=\"2L-64d\"]').getBoundingClientRect(); "
    shown.point(*shown.run(place + "return [box.x + box.width / 2, box.y + box.height / 2]; })()"))
    shown.wait("document.querySelector('.vg-tooltip.visible')")
    row = table.loc[(2, 64)]
    assert shown.run("document.querySelector('.vg-tooltip h2').textContent") == "2L-64d"
    lines = (
        "[...document.querySelectorAll('.vg-tooltip tr')].map(line => [...line.cells].map(one => one.textContent.trim()))"
    )
    assert dict(shown.run(lines)) == {
        "cosine_spearman": f"{row['score'] * 100:.2f} %",
        "share of 4L-128d": f"{row['relative'] * 100:.1f} %",
        "95 % interval of the share": f"{row['relative_low'] * 100:.1f} to {row['relative_high'] * 100:.1f} %",
        "milliseconds per text": f"{row['milliseconds_per_text']:.3g}",
        "bytes per vector": "256",
        "parameters": "2,200",
    }


@pytest.mark.parametrize("task", [None, "A"])
def test_the_slider_recommends_in_the_words_of_the_grid(shown: Page, grid: GridResult, task: str | None) -> None:
    shown.run(SET.format("task", task or "mean of 2 tasks", "change"))
    sizes = set()
    for share in (50, 71.5, 85, 90, 95, 97, 98.5, 100):
        shown.run(SET.format("share", share, "input"))
        best = grid.recommend(share / 100, task=task)
        assert shown.run(TOLD) == str(best).splitlines()
        outlined = "[...document.querySelectorAll('#maps .layer_1_marks path')].map(one => one.getAttribute('aria-label'))"
        until(lambda best=best, script=outlined: [text.split(";")[0] for text in shown.run(script)] == [str(best.size)])
        sizes.add(best.size)
    assert len(sizes) > 3


def test_all_is_in_reach_of_the_keyboard(shown: Page, grid: GridResult) -> None:
    def focus() -> Any:
        return shown.run("document.activeElement.id || document.activeElement.className || document.activeElement.tagName")

    def told() -> str:
        return str(shown.run("document.activeElement.parentElement.querySelector('.details').textContent"))

    before = shown.run(TOLD)
    order = []
    for _ in range(6):
        shown.press("Tab")
        order.append(focus())
        if order[-1] == "share":
            shown.press("Home")
            assert shown.run(TOLD) == str(grid.recommend(0.5)).splitlines() != before
        if order[-1].startswith("chart map"):
            assert told().startswith("1L-16d; cosine_spearman: ")
            for key, size in (
                ("ArrowRight", "1L-64d"),
                ("ArrowDown", "2L-64d"),
                ("ArrowLeft", "2L-16d"),
                ("End", "4L-128d"),
            ):
                shown.press(key)
                assert told().startswith(f"{size}; "), key
        if order[-1].startswith("chart front"):
            shown.press("ArrowRight")
            assert told()
    assert order == ["task", "share", "chart map", "chart front plain", "chart front plain", "SUMMARY"]


def test_saves_the_table_as_csv(shown: Page, grid: GridResult, tmp_path: Path) -> None:
    shown.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "saved"))
    shown.run("document.querySelector('details button').click()")
    until((tmp_path / "saved" / "model.csv").is_file)
    saved = pd.read_csv(tmp_path / "saved" / "model.csv")
    assert list(saved["task"].unique()) == ["mean of 2 tasks", "A", "B"]
    for name, rows in saved.groupby("task"):
        task = str(name) if name in grid.tasks else None
        expected = grid.recommend(0.97, task=task).to_frame().drop(columns="refused")
        by_size = [table.set_index(["num_layers", "dim"]).sort_index() for table in (rows[list(expected)], expected)]
        pd.testing.assert_frame_equal(*by_size, check_exact=True, check_dtype=False)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_fits_the_screen_and_can_be_read(
    page: Page, grid: GridResult, trained: GridResult, width: int, scheme: str, tmp_path: Path
) -> None:
    grid.report(tmp_path / "report.html", beside=[trained])
    page.size(width, 900, scheme)
    page.open(tmp_path / "report.html")
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.querySelectorAll('#maps figure').length") == 2
    paper = luminance(page.run("getComputedStyle(document.body).backgroundColor"))
    assert (paper < 0.05) == (scheme == "dark")
    for place, ink in (("p", "color"), ("#fronts .role-axis-label text", "fill"), ("#maps .role-axis-title text", "fill")):
        written = luminance(page.run(f"getComputedStyle(document.querySelector('{place}')).{ink}"))
        assert (max(paper, written) + 0.05) / (min(paper, written) + 0.05) > 4.5, place
    assert page.errors == []
