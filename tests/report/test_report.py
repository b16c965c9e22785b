"""Reports: one file with everything inside, which says what the grid says."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, Size
from st_matryoshka2d.grid.costs import costs
from st_matryoshka2d.model.declared_agreement import declare_agreement
from tests.support.grids import pairs_grid, random_grid, random_times

SHARES = [0.5, 0.715, 0.85, 0.9, 0.95, 0.97, 0.985, 1.0]


class Elements(HTMLParser):
    """The elements of a page, each with its attributes and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))

    def handle_data(self, data: str) -> None:
        if self.found:
            self.found[-1][2].append(data)


def elements(path: Path) -> list[tuple[str, dict[str, str | None], str]]:
    return [(tag, attributes, "".join(texts)) for tag, attributes, texts in Elements(path.read_text("utf-8")).found]


def data_of(path: Path) -> dict[str, Any]:
    [text] = [text for tag, attributes, text in elements(path) if attributes.get("id") == "data"]
    return dict(json.loads(text))


def views_of(path: Path) -> dict[str, dict[str, Any]]:
    """The tasks of each view, with their tables as frames."""
    found = data_of(path)["views"]
    for view in found:
        for sizes in view["tasks"].values():
            sizes["table"] = pd.DataFrame(sizes["table"])
    return {view["name"]: view["tasks"] for view in found}


def slid_to(share: float, table: pd.DataFrame) -> str | None:
    """What the slider marks: the first size whose share, at the lower end of its interval, is enough."""
    enough = (table["relative"] >= share) & ~(table["relative_low"] < share)
    return next(iter(table["name"][enough]), None)


def assert_recommends_as(grid: GridResult, tasks: dict[str, Any], shares: list[float]) -> None:
    for name, sizes in tasks.items():
        task = name if name in grid.tasks else None
        for share in shares:
            best = grid.recommend(share, task=task)
            wanted = str(best.size) if best.precision == "float32" else f"{best.size} {best.precision}"
            assert slid_to(share, sizes["table"]) == wanted


def test_everything_is_inside(grid: GridResult, tmp_path: Path) -> None:
    grid.report(tmp_path / "report.html")
    page = tmp_path / "report.html"
    assert page.stat().st_size < 2e6
    for tag, attributes, _ in elements(page):
        assert not {"src", "href", "srcset", "data"} & attributes.keys(), (tag, attributes)
        assert tag not in ("link", "iframe", "object", "base")
    [policy] = [attributes["content"] for _, attributes, _ in elements(page) if "http-equiv" in attributes]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    [style] = [text for tag, _, text in elements(page) if tag == "style"]
    assert not re.search(r"@import|url\(", style)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_holds_the_scores_the_shares_and_the_costs(grid: GridResult, tmp_path: Path) -> None:
    grid.report(tmp_path / "report.html")
    [(name, tasks)] = views_of(tmp_path / "report.html").items()
    assert name == "model"
    assert list(tasks) == ["mean of 2 tasks", "A", "B"]
    for task, sizes in tasks.items():
        only = task if task in grid.tasks else None
        expected = grid.recommend(0.97, task=only).to_frame().set_index(["num_layers", "dim"]).drop(columns="refused")
        found = sizes["table"].set_index(["num_layers", "dim"])
        pd.testing.assert_frame_equal(
            found[list(expected)].sort_index(), expected.sort_index(), check_exact=True, check_dtype=False
        )
        for front, cost in (("front_time", "milliseconds_per_text"), ("front_bytes", "bytes")):
            on_it = grid.pareto(cost, only)
            assert set(found.index[found[front]]) == set(zip(on_it["num_layers"], on_it["dim"], strict=True))


def test_the_slider_recommends_as_the_grid_does(grid: GridResult, tmp_path: Path) -> None:
    grid.report(tmp_path / "report.html")
    [tasks] = views_of(tmp_path / "report.html").values()
    assert_recommends_as(grid, tasks, SHARES)
    chosen = {slid_to(share, tasks["A"]["table"]) for share in SHARES}
    assert len(chosen) > 3


@pytest.mark.filterwarnings("ignore:No interval is known")
@pytest.mark.parametrize("seed", range(4))
def test_grids_without_examples_or_times_recommend_too(seed: int, tmp_path: Path) -> None:
    grid = random_grid(seed, precisions=("float32", "int8", "binary"), decimals=1)
    grid = grid.with_latency(random_times(seed)) if seed % 2 else grid
    grid.report(tmp_path / "report.html")
    [tasks] = views_of(tmp_path / "report.html").values()
    assert_recommends_as(grid, tasks, SHARES)
    assert all("No interval is known" in sizes["notes"][0] for sizes in tasks.values())
    data = data_of(tmp_path / "report.html")
    assert data["time"] == ("milliseconds_per_text" if seed % 2 else "num_layers")
    assert data["series"] == ["float32", "int8", "binary"]


def test_models_stand_side_by_side(grid: GridResult, trained: GridResult, tmp_path: Path) -> None:
    grid.report(tmp_path / "report.html", beside=[trained])
    views = views_of(tmp_path / "report.html")
    assert list(views) == ["model", "trained"]
    for one, tasks in zip((grid, trained), views.values(), strict=True):
        assert_recommends_as(one, tasks, [0.9, 0.97])
    assert "<title>model and trained: 2 tasks</title>" in (tmp_path / "report.html").read_text("utf-8")


def test_document_sizes_stand_side_by_side(grid: GridResult, tmp_path: Path) -> None:
    frame, items = grid.frame, grid.items
    shifted = frame.assign(documents="4L-128d", score=frame["score"] + 0.01 * (4 - frame["num_layers"]))
    pair = GridResult(pd.concat([frame, shifted]), items, "model", grid.latency)
    pair.report(tmp_path / "report.html")
    views = views_of(tmp_path / "report.html")
    assert list(views) == ["model, documents at the same size", "model, documents at 4L-128d"]
    own, across = (tasks["A"]["table"].set_index(["num_layers", "dim"])["score"].sort_index() for tasks in views.values())
    assert (across - own).to_numpy() == pytest.approx(0.01 * (4 - own.index.get_level_values(0).to_numpy()))
    expected = costs(pair.at(documents="4L-128d").frame, pair.latency, "A").set_index(["num_layers", "dim"])["score"]
    pd.testing.assert_series_equal(across, expected)


def test_agreement_has_a_report(tiny: SentenceTransformer, tmp_path: Path) -> None:
    declare_agreement(tiny.config, {Size(1, 8): 0.7, Size(2, 8): 0.95, Size(2, 16): 0.96, Size(4, 32): 1.0})
    grid = GridResult.from_agreement(tiny).named("aligned")
    grid.report(tmp_path / "report.html")
    [tasks] = views_of(tmp_path / "report.html").values()
    assert_recommends_as(grid, tasks, [0.7, 0.95, 0.97])
    assert tasks["agreement"]["share_of"] == "the agreement of 4L-32d (the full size)"
    assert "It is not a score" in tasks["agreement"]["notes"][0]


def test_says_why_no_size_is_recommended(tmp_path: Path) -> None:
    few = pairs_grid({"1L-8d": 2.0, "2L-8d": 1.0}, n=20)
    few.report(tmp_path / "few.html")
    [tasks] = views_of(tmp_path / "few.html").values()
    with pytest.raises(ValueError, match="20 examples cannot tell") as refused:
        few.recommend()
    assert tasks["A"]["notes"] == [f"No size is recommended. {refused.value}"]
    assert tasks["A"]["largest"] == ""
    assert slid_to(0.1, tasks["A"]["table"]) is None


def test_a_score_that_is_missing_is_null(tmp_path: Path) -> None:
    grid = random_grid(0, tasks=("A",))
    holes = GridResult(grid.frame.assign(score=grid.frame["score"].where(grid.frame["dim"] != 8, np.nan)))
    holes.report(tmp_path / "report.html")
    [tasks] = views_of(tmp_path / "report.html").values()
    table = tasks["A"]["table"]
    assert table["score"].isna().to_numpy().tolist() == (table["dim"] == 8).to_numpy().tolist()
    assert not table["front_bytes"][table["dim"] == 8].any()


def test_names_are_text(tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script><!-- vega -->"
    random_grid(0, tasks=("A&<b>",)).named(name).report(tmp_path / "report.html", title="<i>")
    found = elements(tmp_path / "report.html")
    assert [tag for tag, _, _ in found].count("script") == 3
    assert not {"b", "i"} & {tag for tag, _, _ in found}
    [view] = data_of(tmp_path / "report.html")["views"]
    assert view["name"] == "script><!-- vega -->"
    assert list(view["tasks"]) == ["A&<b>"]


def test_what_cannot_be_shown_is_refused(grid: GridResult, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end with \.html, got '.*report\.pdf'"):
        grid.report(tmp_path / "report.pdf")
    with pytest.raises(TypeError, match=r"beside must be grids, such as .*, got a str"):
        grid.report(tmp_path / "report.html", beside=["grid.parquet"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="different tasks, A, B and A;"):
        grid.report(tmp_path / "report.html", beside=[grid.at(tasks="A").named("other")])
    with pytest.raises(ValueError, match="need different names, got 'model', 'model'"):
        grid.report(tmp_path / "report.html", beside=[grid.named("other/model")])
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        grid.report(tmp_path / "folder.html")
    assert not (tmp_path / "report.html").exists()
