"""The tables of the reproduction, compared cell by cell with pandas and scipy."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from reproduction.methods import (
    ABLATIONS,
    BEST,
    BY_SIZE,
    CUT,
    FOR_LADDER,
    METHODS,
    SIMCSE,
    UNALIGNED_ENDS,
)
from reproduction.papers import ABLATIONS_BY_SIZE, STARBUCKS_BY_RUNG, STARBUCKS_BY_SET, STARBUCKS_MRR
from reproduction.report import file_of, write
from reproduction.suites import STS
from scipy.stats import ttest_rel

from tests import ROOT

LADDER = ["1L-16d", "2L-32d", "3L-64d", "4L-128d", "5L-256d", "6L-384d"]
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, list[list[str]], Path]:
    """Return random scores of every method, the cells of their report, and its folder."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "scores").mkdir()
    random = np.random.default_rng(0)
    cells = [(layers, dim) for layers in range(1, 7) for dim in (16, 32, 64, 128, 256, 384)]
    frames = []
    for method in [*METHODS, *ABLATIONS]:
        for seed in SEEDS[: 1 if method == "cut" else 2]:
            wanted = [(n, d) for n, d in cells if method not in BY_SIZE or f"{n}L-{d}d" in LADDER]
            rows = [(task, layers, dim, random.normal(60, 5)) for task in STS for layers, dim in wanted]
            frame = pd.DataFrame(rows, columns=["task", "num_layers", "dim", "score"])
            frame.to_csv(file_of(folder / "scores", "sts", method, seed), index=False)
            frames.append(frame.assign(method=method, seed=seed, size=[f"{n}L-{d}d" for _, n, d, _ in rows]))
    text = write(folder, [*METHODS, *ABLATIONS], LADDER, "made up")
    assert text == (folder / "README.md").read_text(encoding="utf-8")
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return pd.concat(frames), table, folder


def rows_of(table: list[list[str]], name: str) -> list[list[str]]:
    return [row[1:] for row in table if row[0] == name]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_its_means_and_their_spread_over_seeds(
    report: tuple[pd.DataFrame, list[list[str]], Path], method: str
) -> None:
    scores, table, _ = report
    mine = scores[(scores["method"] == method) & scores["size"].isin(LADDER)]
    by_size, by_task, *_ = rows_of(table, method)
    for column, names, row in (("size", LADDER, by_size), ("task", sorted(STS), by_task)):
        for name, cell in zip([*names, None], row, strict=True):
            part = mine if name is None else mine[mine[column] == name]
            means = [part[part["seed"] == seed]["score"].mean() for seed in SEEDS]
            wanted = f"{means[0]:.1f}" if method == "cut" else f"{np.mean(means):.1f} ± {np.std(means, ddof=1):.1f}"
            assert cell == wanted


def test_a_method_has_a_row_of_all_depths_at_the_full_width(report: tuple[pd.DataFrame, list[list[str]], Path]) -> None:
    scores, table, _ = report
    mine = scores[(scores["method"] == "Starbucks") & (scores["dim"] == 384)].groupby(["num_layers", "seed"])["score"].mean()
    row = rows_of(table, "Starbucks")[3]
    assert row[:-1] == [f"{one.mean():.1f} ± {one.std():.1f}" for _, one in mine.groupby("num_layers")]
    assert len(rows_of(table, "separate")) == 3


def test_a_share_is_of_the_untrained_full_size(report: tuple[pd.DataFrame, list[list[str]], Path]) -> None:
    scores, table, _ = report
    whole = scores[(scores["method"] == "cut") & (scores["size"] == "6L-384d")]["score"].mean()
    mine = scores[scores["method"] == "Starbucks"].groupby("size")["score"].mean()
    assert rows_of(table, "Starbucks")[2] == [f"{mine[size] / whole:.1%}" for size in LADDER]


@pytest.mark.parametrize(("method", "other"), [("Starbucks", "2DMSE"), ("Starbucks", "separate"), ("cut, aligned", "cut")])
def test_a_difference_has_a_star_where_the_tasks_agree(
    report: tuple[pd.DataFrame, list[list[str]], Path], method: str, other: str
) -> None:
    """Differences use the seeds that both methods have: `cut` has one."""
    scores, table, _ = report
    seeds = SEEDS[: 1 if other == "cut" else 2]
    means = scores[scores["seed"].isin(seeds)].groupby(["method", "size", "task"])["score"].mean()
    (row,) = rows_of(table, f"{method} - {other}")
    for size, cell in zip(LADDER, row[:-1], strict=True):
        both = [[means[name, size, task] for task in STS] for name in (method, other)]
        star = "*" if ttest_rel(*both).pvalue < 0.05 else ""
        assert cell == f"{np.mean(both[0]) - np.mean(both[1]):+.1f}{star}"


def test_ablations_use_tasks_of_papers(report: tuple[pd.DataFrame, list[list[str]], Path]) -> None:
    scores, table, _ = report
    rows = rows_of(table, "MIPIC without PIC")
    assert [size for size, _, _ in rows] == [f"6L-{dim}d" for dim in (16, 32, 64, 128, 256, 384)]
    sts12 = scores[scores["task"] == "sts12"].groupby(["method", "size"])["score"].mean()
    for size, here, paper in rows:
        assert here == f"{sts12['MIPIC without PIC', size] - sts12['MIPIC', size]:+.2f}"
        assert paper == f"{ABLATIONS_BY_SIZE['MIPIC without PIC'][size]:+.2f}"


def test_widths_and_truncations_have_tables_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "scores").mkdir()
    pairs = [("mrpc", n, d, 10 * n + d) for n in (2, 6) for d in (16, 384)]
    frame = pd.DataFrame(pairs, columns=["task", "num_layers", "dim", "score"])
    frame.to_csv(file_of(tmp_path / "scores", "pairs", "MRL", 0), index=False)
    cuts = [("first", 16, 30), ("first", 384, 80), *((f"random-{draw}", 16, 40 + draw) for draw in range(3))]
    cut = pd.DataFrame(cuts, columns=["truncation", "dim", "score"]).assign(task="stsb", num_layers=6)
    cut.to_csv(file_of(tmp_path / "scores", "truncation", "MRL", 0), index=False)
    text = write(tmp_path, [*METHODS, *ABLATIONS], LADDER, "made up")
    tables = dict(re.findall(r"## ([^\n]+)\n\n((?:\|[^\n]*\n)+)", text))
    rows = {
        "pairs: all layers, by dims, mean of the tasks": "| MRL | 76.0 | 444.0 | 260.0 |",
        "truncation: the first dims, mean of the tasks": "| MRL | 80.0 | 30.0 | 55.0 |",
        "truncation: random dims, mean of three draws, mean of the tasks": "| MRL | 41.0 | 41.0 |",
    }
    for title, row in rows.items():
        assert row in tables[title].splitlines(), title


def test_figures_are_drawn_where_there_are_scores_of_all_depths(
    report: tuple[pd.DataFrame, list[list[str]], Path], tmp_path: Path
) -> None:
    drawn = {path.name for path in report[2].iterdir()}
    assert {"depths.png", "Starbucks_against_2DMSE.png", "Starbucks_against_cut.png"} <= drawn
    (tmp_path / "scores").mkdir()
    shutil.copy(file_of(PUBLISHED.parent / "scores", "choosing", "MRL", 0), tmp_path / "scores")
    write(tmp_path, [*METHODS, *ABLATIONS], LADDER, "made up")
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("method", STARBUCKS_BY_SET)
def test_tables_of_papers_agree(method: str) -> None:
    """Detects errors in copying either table."""
    by_set, by_rung = list(STARBUCKS_BY_SET[method].values()), STARBUCKS_BY_RUNG[method]
    assert np.mean(by_set) == pytest.approx(np.mean(by_rung), abs=0.02)


def test_mrr_of_the_paper_agrees_with_its_table_1() -> None:
    """Detects errors in copying either table."""
    means = [np.mean(scores) for scores in STARBUCKS_MRR.values()]
    assert means == pytest.approx([5.59, 29.17, 25.60, 29.21, 31.16], abs=0.011)


PUBLISHED = ROOT / "benchmarks" / "results" / "reproduce" / "100x64" / "README.md"


def numbers(lines: list[str], name: str) -> list[str]:
    line = next(line for line in lines if line.startswith(f"| {name} |"))
    # without the spread over seeds
    return re.findall(r"(?<!± )\b\d+\.\d", line.removeprefix(f"| {name} |"))


REPRODUCE = PUBLISHED.parents[1]


def test_the_picture_of_the_readme_is_described_as_the_scores_are() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for folder, name in (("100x64", "cut"), ("100x64-ends", "first_and_last_layers"), ("100x64-ends", "cut_aligned")):
        scores = pd.read_csv(REPRODUCE / folder / "scores" / f"sts.{name}.0.csv")
        scores = scores.groupby(["num_layers", "dim"])["score"].mean()
        kept = (100 * scores / scores[6, 384]).drop(6)
        assert f"{round(kept.min())} to {round(kept.max())} %" in readme


def test_alignment_page_quotes_scores() -> None:
    """The shown gain, and search by half the layers, are those of the benchmark's cells."""
    page = (ROOT / "docs" / "alignment.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    cells = {tuple(row[:2]) if row[1].isdigit() else row[0]: row[1:] for row in rows}
    halves = {"all-MiniLM-L6-v2": "3L-384d", "all-mpnet-base-v2": "6L-768d", "multilingual-e5-small": "6L-384d"}
    for model, half in halves.items():
        sts = pd.read_csv(REPRODUCE.parent / "alignment" / model / "sts.csv")
        ladder = sts[sts["table"] == "STS"].groupby("row")["score"].mean()
        found = search_of(model, half[3:-1])[half]
        ways = ["first layers", "first and last layers", "aligned"]
        shown = [*ladder[ways], *found[ways]]
        assert [float(cell) for cell in cells[model][:6]] == pytest.approx(shown, abs=0.051)
    narrow = search_of("all-MiniLM-L6-v2", "64").loc['rotation="search"']
    shown = cells['all-MiniLM-L6-v2, `rotation="search"`', "64"][1:]
    assert [float(cell) for cell in shown] == pytest.approx([narrow[f"{layers}L-64d"] for layers in range(1, 7)], abs=0.051)


def search_of(model: str, dims: str) -> pd.DataFrame:
    """Return nDCG by row and size."""
    cells = pd.read_csv(REPRODUCE.parent / "alignment" / model / "search.csv")
    return cells[cells["table"] == f"Search, {dims} dims"].pivot_table(index="row", columns="column", values="score")


def test_papers_page_quotes_reports() -> None:
    """Means and full sizes of both models stand in their reports, and the papers' in `STARBUCKS_BY_RUNG`."""
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 13
    cells = {name: numbers for name, *numbers in rows}
    for shown, method, folders in (
        ("six models", "separate", ("100x64", "all-mpnet-base-v2-100x32-ends")),
        ("2DMSE", "2DMSE", ("100x64", "all-mpnet-base-v2-100x32")),
        ("Starbucks", "Starbucks", ("100x64", "all-mpnet-base-v2-100x32")),
        ("MIPIC", "MIPIC", ("100x64-2e-05", "all-mpnet-base-v2-100x32-2e-05")),
        ("recipe", BEST, ("100x64-ends", "all-mpnet-base-v2-100x32-ends")),
    ):
        for place, folder in zip((0, 2), folders, strict=True):
            of_method = numbers((REPRODUCE / folder / "README.md").read_text(encoding="utf-8").splitlines(), method)
            assert cells[shown][place : place + 2] == [of_method[6], of_method[5]]
    for method in ("2DMSE", "Starbucks"):
        rungs = STARBUCKS_BY_RUNG[method]
        assert cells[method][4:] == [f"{score:.1f}" for score in (np.mean(rungs), rungs[5])]


@pytest.mark.parametrize(
    ("model", "folder", "sts"),
    [("all-MiniLM-L6-v2", "100x64-ends", "sts"), ("all-mpnet-base-v2", "all-mpnet-base-v2-100x32-ends", "ladder")],
)
def test_page_quotes_what_sizes_keep(model: str, folder: str, sts: str) -> None:
    scores = PUBLISHED.parents[1] / folder / "scores"

    def by_size(suite: str, method: str) -> pd.Series:
        files = scores.glob(file_of(scores, suite, method, "?").name)
        found = pd.concat([pd.read_csv(file) for file in files])
        return found.groupby(found["num_layers"].astype(str) + "L-" + found["dim"].astype(str) + "d")["score"].mean()

    page = (ROOT / "docs" / "kept.md").read_text(encoding="utf-8")
    table = page.split(f"<!-- table: {model} by size -->\n\n")[1].split("\n\n")[0].splitlines()
    sizes, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (table[0], *table[2:]))
    assert {name.split(", ")[0] for name, *_ in rows} == {"STS", "search", "classification"}
    suites = {"STS": sts, "search": "retrieval", "classification": "classification"}
    for name, *cells in rows:
        family, way = name.split(", ")
        methods = {
            "first layers": CUT,
            "first and last layers": UNALIGNED_ENDS,
            "aligned": f"{CUT}, aligned",
            "trained": BEST,
        }
        found = by_size(suites[family], methods[way])
        whole = by_size(suites[family], CUT)[sizes[-1]]
        assert cells == [f"{found[size]:.1f} ({found[size] / whole:.0%})" for size in sizes[1:]]


def test_page_quotes_distances_of_other_ways() -> None:
    page = " ".join((ROOT / "docs" / "other_ways.md").read_text(encoding="utf-8").split())

    def behind(file: str) -> pd.DataFrame:
        cells = pd.read_csv(ROOT / "benchmarks" / "results" / "baselines" / file)
        aligned = cells[cells["way"] == "first and last layers, aligned"][["table", "size", "score"]]
        found = cells[~cells["way"].str.contains("aligned")].merge(aligned, on=["table", "size"], suffixes=("", "_aligned"))
        return found.assign(behind=found["score_aligned"] - found["score"])

    search = behind("search/search.csv").query("table == 'The ladder'")
    search = search[search["size"].isin(["1L-16d", "2L-32d", "3L-64d"])]["behind"]
    assert f"every way without readouts by {search.min():.0f} to {search.max():.0f} points" in page
    larger = behind("all-mpnet-base-v2/sts.csv").query("table != 'Fewer dims, all layers'")
    assert f"each size of the ladder, by {larger['behind'].min():.0f} to {larger['behind'].max():.0f} points" in page
    assert (larger["high"] < 0).all()


REPORTS = sorted(folder.parent.name for folder in REPRODUCE.glob("*/scores"))
LARGER_LADDER = ["2L-32d", "4L-64d", "6L-128d", "8L-256d", "10L-512d", "12L-768d"]


@pytest.mark.parametrize(
    "name", [PUBLISHED.parent.name, *(pytest.param(name, marks=pytest.mark.slow) for name in REPORTS if name != "100x64")]
)
def test_report_matches_scores(tmp_path: Path, name: str) -> None:
    folder = REPRODUCE / name
    shutil.copytree(folder / "scores", tmp_path / "scores")
    published = (folder / "README.md").read_text(encoding="utf-8")
    ladder = LARGER_LADDER if name.startswith("all-mpnet-base-v2") else LADDER
    assert write(tmp_path, [*METHODS, *ABLATIONS, *SIMCSE, *FOR_LADDER], ladder, published.splitlines()[2]) == published


def test_evaluation_page_quotes_times() -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    small = pd.read_json(ROOT / "benchmarks" / "results" / "grid" / "time.json").set_index("way")
    words = " ".join(page.split())
    assert f"take {small['seconds']['ours']:.1f} s on two CPU cores" in words
    times = [f"{small['times ours'][way]:.{digits}f} times" for way, digits in (("layers", 1), ("pairs", 0))]
    assert f"takes {times[0]} as long" in words
    assert f"as the papers do, {times[1]}" in words
