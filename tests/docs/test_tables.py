"""Tables of the pages are those that `docs/tools/tables` writes from the result files."""

from __future__ import annotations

import re
from runpy import run_path

import pandas as pd

from tests import ROOT

TOOL = run_path(str(ROOT / "docs" / "tools" / "tables"))
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in TOOL["PAGES"]}


def test_every_table_is_up_to_date_and_on_one_page() -> None:
    assert [name for name, page in PAGES.items() if TOOL["filled"](page) != page] == []
    placed = [table for page in PAGES.values() for table in re.findall(r"<!-- table: (.+?) -->", page)]
    assert sorted(placed) == sorted(TOOL["TABLES"])


def test_a_star_is_an_interval_without_zero() -> None:
    table = PAGES["other_ways"].split("<!-- table: fewer layers -->\n\n")[1].split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    starred = 0
    for name, *cells in rows:
        for column, cell in zip(head[1:], cells, strict=True):
            kind, size = column.split(", ")
            file = {"STS": "sts.csv", "search": "search/search.csv"}[kind]
            scores = pd.read_csv(ROOT / "benchmarks" / "results" / "baselines" / file)
            here = (scores["table"] == "Fewer layers, all dims") & (scores["way"] == name) & (scores["size"] == size)
            # scored with the methods of the papers, without an interval
            if name == "first and last layers":
                assert not cell.endswith("*")
                continue
            (one,) = scores[here].itertuples()
            assert cell.rstrip("*") == f"{one.score:.1f}"
            assert cell.endswith("*") == (not one.low <= 0 <= one.high)
            starred += cell.endswith("*")
    assert starred > 10


def test_a_table_is_replaced_and_the_text_around_it_stays() -> None:
    page = "Before\n\n<!-- table: time of a step -->\n\n| old |\n| --- |\n| 1 |\n\nAfter\n"
    written = TOOL["filled"](page)
    assert "| old |" not in written
    assert re.fullmatch(r"Before\n\n<!-- table: time of a step -->\n\n(\|.*\n)+\nAfter\n", written)
    assert TOOL["filled"](page.replace("| old |\n| --- |\n| 1 |\n\n", "")) == written
