"""The tables of the reproduction, compared cell by cell with pandas and scipy."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from reproduction.methods import ABLATIONS, BY_SIZE, FOR_LADDER, METHODS, SIMCSE
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


REPRODUCE = PUBLISHED.parents[1]


def test_the_picture_of_all_sizes_is_described_as_the_scores_are() -> None:
    page = (ROOT / "docs" / "kept.md").read_text(encoding="utf-8")
    for folder, name in (("100x64-ends", "cut"), ("100x64-ends", "first_and_last_layers"), ("100x64-ends", "cut_aligned")):
        scores = pd.read_csv(REPRODUCE / folder / "scores" / f"sts.{name}.0.csv")
        scores = scores.groupby(["num_layers", "dim"])["score"].mean()
        kept = (100 * scores / scores[6, 384]).drop(6)
        assert f"{round(kept.min())} to {round(kept.max())} %" in page


def test_the_picture_of_the_readme_is_described_as_the_scores_are() -> None:
    (described,) = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "half.png" in line]
    tables = [pd.read_csv(file) for file in (REPRODUCE.parent / "unseen").glob("*.csv")]
    rows = pd.concat(tables).query("part == 'unseen' and share == 0.5 and questions <= 5000").sort_values("questions")
    for verb, told in {
        "not aligned": "",
        "heal": "healed ",
        "align": "aligned ",
        "fit_queries": "a token table keeps ",
    }.items():
        kept = rows[rows["verb"] == verb].groupby(["model", "set"])["kept"].last()
        assert f"{told}{kept.min():.0f} to {kept.max():.0f} %" in described


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
