"""Reports: one file with everything inside, which says what the grid says."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from st_matryoshka2d import GridResult, Size
from st_matryoshka2d.cli.app import app
from tests.support.declared import declare
from tests.support.grids import pairs_grid, random_grid, random_times

SHARES = (50, 85, 97, 100)


class Elements(HTMLParser):
    """The elements of a page, each with its attributes and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.parts: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts.append((tag, dict(attrs), []))

    def handle_data(self, data: str) -> None:
        if self.parts:
            self.parts[-1][2].append(data)


def elements(path: Path) -> list[tuple[str, dict[str, str | None], str]]:
    parts = Elements(path.read_text("utf-8")).parts
    return [(tag, attributes, "".join(texts)) for tag, attributes, texts in parts]


def marks(path: Path, tag: str) -> dict[str, str]:
    """The text of each size in a cell of a heat map (td) or at a point (i), by panel and name."""
    parts = elements(path)
    return {
        str(attributes["data-size"]): str(attributes["title"])
        for name, attributes, _ in parts
        if name == tag and "data-size" in attributes
    }


def answer(path: Path, share: float, stop: str, panel: int = 0) -> list[str]:
    """What the page says at one place of the sliders: a size, and a sentence."""
    [script] = [text for tag, _, text in elements(path) if tag == "script"]
    shares, stops, panels = map(json.loads, re.findall(r"const \w+ = (\[\S.*\]);\n", script)[:3])
    answers, steps = panels[panel]
    return list(answers[steps[stops.index(stop)][shares.index(f"{share:g}")]])


def recommended(grid: GridResult, share: float, **limits: Any) -> list[str]:
    try:
        best = grid.recommend(share, **limits)
    except ValueError as refusal:
        return ["", str(refusal)]
    precision = "" if best.precision == "float32" else f" {best.precision}"
    return [f"{best.size}{precision}", str(best)]


def assert_says_as(grid: GridResult, path: Path, stops: Sequence[int], panel: int = 0, **limits: Any) -> None:
    for share in SHARES:
        for stop in stops:
            assert answer(path, share, f"{stop:,}", panel) == recommended(grid, share / 100, max_bytes=stop, **limits)


def test_everything_is_inside(grid: GridResult, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    grid.report(page)
    assert page.stat().st_size < 3e5
    for tag, attributes, _ in elements(page):
        assert not {"src", "href", "srcset", "data"} & attributes.keys(), (tag, attributes)
        assert tag not in ("link", "iframe", "object", "base")
    [policy] = [attributes["content"] for _, attributes, _ in elements(page) if "http-equiv" in attributes]
    assert policy == "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
    [style] = [text for tag, _, text in elements(page) if tag == "style"]
    assert not re.search(r"@import|url\(", style)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_says_at_each_step_what_recommend_says(grid: GridResult, trained: GridResult, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    grid.report(page, beside=[trained])
    for panel, shown in enumerate((grid, trained)):
        assert_says_as(shown, page, (256,), panel)
    assert len({answer(page, share, "512")[0] for share in SHARES}) == 4


def test_limits_are_those_of_recommend(grid: GridResult, trained: GridResult, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    limits: dict[str, Any] = {"max_ms": 3, "reference": grid}
    trained.report(page, min_score=0.925, max_bytes=300, **limits)
    assert_says_as(trained, page, (300,), **limits)
    assert answer(page, 92.5, "300") == recommended(trained, 0.925, max_bytes=300, **limits)
    sliders = {str(attributes["id"]): attributes for tag, attributes, _ in elements(page) if tag == "input"}
    opens = {name: (slider["value"], slider["max"]) for name, slider in sliders.items()}
    assert opens == {"share": ("43", "51"), "bytes": ("2", "3")}  # of 50 to 92, 92.5, 93 to 100; of 64, 256, 300, 512
    untimed = GridResult(grid.frame, grid.items)
    with pytest.raises(ValueError, match="max_ms needs the times"):
        untimed.report(page, max_ms=3)


def test_the_command_takes_the_limits_of_recommend(grid: GridResult, trained: GridResult, tmp_path: Path) -> None:
    for name, shown in {"grid": grid, "trained": trained}.items():
        shown.save(tmp_path / f"{name}.parquet")
    trained.report(tmp_path / "python.html", min_score=0.9, max_ms=3, max_bytes=256, max_megabytes=60, reference=grid)
    line = ["report", "trained.parquet", "--out", "shell.html", "--min-score", "0.9", "--max-ms", "3", "--max-bytes", "256"]
    line += ["--max-megabytes", "60", "--reference", "grid.parquet"]
    paths = [str(tmp_path / word) if "." in word and not word[0].isdigit() else word for word in line]
    assert CliRunner().invoke(app, paths).exit_code == 0
    assert (tmp_path / "shell.html").read_bytes() == (tmp_path / "python.html").read_bytes()


@pytest.mark.parametrize("timed", [True, False])
def test_without_examples_or_times(timed: bool, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    grid = random_grid(1, precisions=("float32", "int8"), decimals=1)
    grid = grid.with_latency(random_times(1)) if timed else grid
    grid.report(page)
    with pytest.warns(UserWarning, match="No interval is known"):
        assert_says_as(grid, page, (256,))
    text = page.read_text("utf-8")
    assert "No interval is known" in text
    assert "n&nbsp;=" not in text
    assert text.count('<div class="plot">') == text.count(">bytes per vector</small>") + 2 * timed
    assert ("milliseconds per text" in text) == ("megabytes of a file" in text) == timed


def test_a_limit_on_checkpoints_is_that_of_recommend(grid: GridResult, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    grid.report(page, max_megabytes=60)
    assert page.read_text("utf-8").count(">megabytes of a file</small>") == 1
    assert_says_as(grid, page, (512,), max_megabytes=60)
    assert not any(answer(page, share, "512")[0].startswith("4L") for share in SHARES)
    assert grid.latency is not None
    without = grid.with_latency(grid.latency.drop(columns="megabytes"))
    with pytest.raises(ValueError, match="max_megabytes needs the bytes of files, which the grid of org/model lacks"):
        without.report(page, max_megabytes=60)


def test_says_what_is_known_of_each_size(grid: GridResult, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    grid.report(page)
    table = grid.recommend().to_frame().set_index(["num_layers", "dim"])
    cells = marks(page, "td")
    assert cells == marks(page, "i")
    assert set(cells) == {f"0 {layers}L-{dim}d" for layers, dim in table.index}
    row = table.loc[(2, 64)]
    low, share, high = (100 * row[name] for name in ("relative_low", "relative", "relative_high"))
    assert cells["0 2L-64d"].splitlines() == [
        "size: 2L-64d",
        f"score: {100 * row['score']:.2f} %",
        f"share of the score of 4L-128d (the full size): {share:.1f} % ({low:.1f} to {high:.1f} % on 300 examples)",
        "milliseconds per text: 2.12",
        "megabytes of a file: 50.0",
        "bytes per vector: 256",
    ]
    text = page.read_text("utf-8")
    assert "n&nbsp;= 300 examples" in text
    about = f"(4 layers, 128 numbers in a vector): cosine_spearman on mean of 2 tasks, {date.today():%d %B %Y}."
    assert f"org/model {about}" in text
    assert "cosine_spearman says how far similarities order pairs as people do." in text


def test_ticks_are_round_and_bytes_are_those_of_vectors(tmp_path: Path) -> None:
    grid = random_grid(1, dims=(64, 4096), decimals=3)
    grid.with_latency(random_times(1)).report(tmp_path / "report.html")
    ticks = [text.strip() for _, kind, text in elements(tmp_path / "report.html") if kind.get("class") in ("x", "y")]
    assert {"256", "16,384"} < {*ticks}
    numbers = [tick for tick in ticks if re.fullmatch(r"[\d.,]+", tick) and tick not in ("256", "16,384")]
    assert len(numbers) >= 9  # two axes of scores, one of times
    assert all(len(number.replace(".", "").strip("0")) <= 2 for number in numbers)


def test_agreement_has_a_report(tiny: SentenceTransformer, tmp_path: Path) -> None:
    sizes = {Size(1, 8): 0.7, Size(2, 8): 0.95, Size(2, 16): 0.96, Size(4, 32): 1.0}
    declare(tiny.config, agreement=sizes)
    grid = GridResult.from_agreement(tiny).named("aligned")
    grid.report(tmp_path / "report.html")
    assert_says_as(grid, tmp_path / "report.html", (32, 64, 128))


def test_says_which_side_has_the_sizes(grid: GridResult, tmp_path: Path) -> None:
    frame, items = (table.assign(documents="4L-128d") for table in (grid.frame, grid.items))
    page = tmp_path / "report.html"
    GridResult(frame, items, full_size="4L-128d").report(page)
    assert "Sizes are those of queries; all documents are at 4L-128d." in page.read_text("utf-8")
    assert marks(page, "td").keys() == {f"0 {size}" for size in grid.sizes}
    assert answer(page, 85, "512")[0] in {f"{size}" for size in grid.sizes}


def test_a_score_that_is_missing_is_left_out(tmp_path: Path) -> None:
    grid = random_grid(0, tasks=("A",))
    known = grid.frame["score"].where(grid.frame["dim"] != 8, np.nan)
    GridResult(grid.frame.assign(score=known)).report(tmp_path / "report.html")
    wanted = {f"0 {layers}L-{dim}d" for layers in (1, 2, 4) for dim in (20, 64)}
    assert set(marks(tmp_path / "report.html", "td")) == wanted
    assert set(marks(tmp_path / "report.html", "i")) == wanted


def test_names_are_text(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    name = '"></script><script>alert(1)</script>{{ 7 * 7 }}'
    random_grid(0, tasks=("A&<b>",)).named(name).report(page, title="<i>")
    parts = elements(page)
    assert [tag for tag, _, _ in parts].count("script") == 1
    assert [text for tag, _, text in parts if tag == "title"] == ["<i>\n"]
    assert not {"a", "i"} & {tag for tag, attributes, _ in parts if not attributes}


def test_what_cannot_be_shown_is_refused(grid: GridResult, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    few = pairs_grid({"1L-8d": 2.0, "2L-8d": 1.0}, n=20)
    refused = {
        r"must end with \.html, got '.*report\.pdf'": lambda: grid.report(tmp_path / "report.pdf"),
        "different tasks, A and A, B": lambda: grid.report(page, beside=[grid.at(tasks="A").named("B")]),
        "got 'model', 'model'": lambda: grid.report(page, beside=[grid.named("other/model")]),
        "20 examples": lambda: few.report(page),
        "min_score is a fraction": lambda: grid.report(page, min_score=97),
    }
    for words, call in refused.items():
        with pytest.raises(ValueError, match=words):
            call()
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        grid.report(tmp_path / "folder.html")
    assert not page.exists()
