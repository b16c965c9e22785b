"""Comparison of two grids: differences, the test of each cell, and marks in tables and figures."""

from __future__ import annotations

import functools
import operator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from numpy.typing import NDArray
from scipy import stats

from st_matryoshka2d import GridResult, Size
from st_matryoshka2d.grid.compare import GridComparison
from st_matryoshka2d.grid.significance import correlation_test, fisher_z_test, holm

SIZES = [Size(2, 32), Size(2, 64), Size(4, 64)]


PAIRS = [f"pair {index}" for index in range(300)]


Values = NDArray[np.float64]


def row(task: str, size: Size, metric: str, score: float, **more: Any) -> dict[str, Any]:
    place = {"task": task, "split": "test", "subset": "default", "num_layers": size.num_layers, "dim": size.dim}
    return place | {"metric": metric, "score": score, "is_main": True} | more


def item(score: dict[str, Any], ids: list[str], values: Values, gold: Values | None = None) -> dict[str, Any]:
    kept = {key: value for key, value in score.items() if key not in ("metric", "score", "is_main")}
    return kept | {"ids": ids, "values": values, "gold": gold}


def gold_of(task: str) -> Values:
    return np.random.default_rng(ord(task)).normal(size=300)


def similarities(task: str, size: Size, noise: float, seed: int) -> Values:
    """Return a model's similarities of 300 pairs; models share errors, so that their similarities correlate."""
    own, shared = np.random.default_rng([seed, size.dim, size.num_layers]), np.random.default_rng(ord(task) + 1000)
    values: Values = gold_of(task) + 0.5 * shared.normal(size=300) + noise * own.normal(size=300)
    return values


def sts(model: str, noises: dict[str, float], seed: int, sizes: list[Size] = SIZES) -> GridResult:
    """Return a grid of tasks whose scores fall with noise."""
    scores, items = [], []
    for task, noise in noises.items():
        for size in sizes:
            values = similarities(task, size, noise, seed)
            scores.append(row(task, size, "cosine_spearman", stats.spearmanr(values, gold_of(task)).statistic))
            items.append(item(scores[-1], PAIRS, values, gold_of(task)))
    return GridResult(pd.DataFrame(scores), pd.DataFrame(items), model)


@pytest.fixture
def ours() -> GridResult:
    return sts("lab/ours", {"A": 0.1, "B": 0.30}, seed=0)


@pytest.fixture
def theirs() -> GridResult:
    return sts("lab/theirs", {"A": 0.4, "B": 0.31}, seed=1)


@pytest.mark.parametrize(("test", "correction"), [("auto", "holm"), ("fisher", None)])
def test_correlations_cell_by_cell(ours: GridResult, theirs: GridResult, test: str, correction: str | None) -> None:
    frame = ours.compare(theirs, test=test, correction=correction, alpha=0.01).to_frame()
    assert [(r.task, Size(r.num_layers, r.dim)) for r in frame.itertuples()] == [(t, size) for t in "AB" for size in SIZES]
    for at, r in enumerate(frame.itertuples()):
        a, b = ours.items["values"][at], theirs.items["values"][at]
        gold = gold_of(r.task)
        r1, r2 = (stats.spearmanr(values, gold).statistic for values in (a, b))
        p = fisher_z_test(r1, r2, 300, 300) if test == "fisher" else correlation_test(gold, a, b, ranks=True)
        assert (r.score, r.other_score, r.delta) == pytest.approx((r1, r2, r1 - r2), abs=1e-12)
        assert (r.n, r.p_value) == (300, pytest.approx(p, rel=1e-9))
    assert set(frame["test"]) == {"Fisher" if test == "fisher" else "jackknife"}
    adjusted = frame["p_value"] if correction is None else holm(frame["p_value"])
    assert frame["p_adjusted"].tolist() == list(adjusted)
    assert frame["significant"].tolist() == [p < 0.01 for p in adjusted]
    if test == "auto":  # A is much less noisy in the first grid. B is almost the same.
        assert frame["significant"].tolist() == [True] * 3 + [False] * 3


def test_pearson_test(ours: GridResult, theirs: GridResult) -> None:
    grids = []
    for grid in (ours, theirs):
        scores = [np.corrcoef(r["values"], r["gold"])[0, 1] for r in grid.items.to_dict("records")]
        grids.append(GridResult(grid.frame.assign(metric="cosine_pearson", score=scores), grid.items.drop(columns="metric")))
    first = grids[0].compare(grids[1]).to_frame().iloc[0]
    assert first["p_value"] == correlation_test(gold_of("A"), ours.items["values"][0], theirs.items["values"][0])


A, B = ([*values, *[0.5] * 26] for values in ((0.9, 0.5, 0.7, 0.6), (0.6, 0.4, 0.5, 0.5)))


def queries(model: str, ndcg: list[list[float]], *, turned: bool = False) -> GridResult:
    """Return a grid of the metric of each query; `turned` has the same queries in reverse order."""
    order = slice(None, None, -1 if turned else 1)
    scores = [row("R", size, "ndcg_at_10", float(np.mean(values))) for size, values in zip(SIZES, ndcg, strict=False)]
    ids = [f"query {number}" for number in range(len(ndcg[0]))][order]
    items = [item(score, ids, np.array(values)[order]) for score, values in zip(scores, ndcg, strict=True)]
    return GridResult(pd.DataFrame(scores), pd.DataFrame(items), model)


def test_queries_get_a_paired_t_test_whatever_their_order() -> None:
    a, b = A, B
    p = 2.0**-3  # the chance that four coins agree: the t-test alone would give less
    assert p > stats.ttest_rel(a, b).pvalue
    for other in (queries("b", [b, a]), queries("b", [b, a], turned=True)):
        for test in ("auto", "fisher"):
            frame = queries("a", [a, a]).compare(other, test=test).to_frame()
            assert frame["test"].tolist() == ["paired t"] * 2
            assert frame["p_value"].tolist() == pytest.approx([p, 1.0])
            assert frame["p_adjusted"].tolist() == pytest.approx([2 * p, 1.0])


def test_a_grid_against_itself(ours: GridResult) -> None:
    same = ours.compare(ours)
    assert same.to_frame()["delta"].tolist() == [0.0] * 6
    assert (same.pivot().fillna(0) == 0).all(axis=None)
    assert set(same.to_frame()["p_value"]) == {1.0}
    assert str(same).count("+0.00") == 3
    assert same.names == ("ours (first)", "ours (other)")


def test_sizes_that_both_have(ours: GridResult) -> None:
    other = sts("lab/theirs", {"A": 0.4, "B": 0.31}, seed=1, sizes=[*SIZES[1:], Size(6, 64)])
    comparison = ours.compare(other)
    assert set(zip(comparison.frame["num_layers"], comparison.frame["dim"], strict=True)) == {(2, 64), (4, 64)}
    assert comparison.pivot("B")[64][4] == pytest.approx(ours.score("4L-64d", "B") - other.score("4L-64d", "B"))
    assert comparison.pivot()[64][2] == pytest.approx(ours.score("2L-64d") - other.score("2L-64d"))


def test_few_examples_claim_nothing(ours: GridResult) -> None:
    """Eleven pairs on which one model is far better, and 30, from which tests begin."""
    good, bad = np.linspace(0, 1, 30), np.linspace(1, 0, 30)
    few, enough = (queries("a", [good[:n]]).compare(queries("b", [bad[:n] - 1])) for n in (11, 30))
    assert few.to_frame()[["test", "n", "significant"]].to_numpy().tolist() == [["none: too few examples", 11, False]]
    assert str(few).endswith("\n? Not tested (too few examples). Examples: R 11. Fewer than 30 tell little.")
    assert enough.to_frame()["significant"].item()
    assert str(enough).endswith(" Examples: R 30.")
    assert str(ours.compare(ours)).endswith(" Examples: A 300, B 300.")
    assert str(queries("a", [good[:11]])).endswith("\n\nExamples: R 11. Fewer than 30 tell little.")


def test_no_test_without_items() -> None:
    ours, theirs = (GridResult(pd.DataFrame([row("C", SIZES[0], "accuracy", score)])) for score in (0.8, 0.7))
    comparison = ours.compare(theirs)
    (found,) = comparison.to_frame().to_dict("records")
    assert (found["test"], found["n"], found["significant"]) == ("none: no items", 0, False)
    assert np.isnan(found["p_value"])
    assert np.isnan(found["p_adjusted"])
    assert str(comparison).splitlines()[0] == "C: accuracy, first minus other, points"
    assert str(comparison).splitlines()[-2:] == ["2             +10.00?", "? Not tested (no items)."]


def scored(grid: GridResult, **columns: Any) -> GridResult:
    return GridResult(grid.frame.assign(**columns), grid.items.drop(columns="metric"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda grid: scored(grid, metric="cosine_pearson"), "none: items do not give the score"),
        (lambda grid: scored(grid, score=grid.frame["score"] + 0.00011), "none: items do not give the score"),
        (lambda grid: scored(grid, score=grid.frame["score"].round(5)), "jackknife"),
        (lambda grid: scored(grid, metric="max_ap"), "none: not a correlation"),
        (lambda grid: scored(changed(grid, values=np.ones(300)), score=np.nan), "none: a score is NaN"),
    ],
)
def test_only_scores_that_the_items_give_are_tested(ours: GridResult, change: Any, told: str) -> None:
    comparison = change(ours).compare(change(ours))
    frame = comparison.to_frame()
    assert set(frame["test"]) == {told}
    assert frame["p_value"].isna().all() == (told != "jackknife")
    assert ("? Not tested (a score is NaN)." in str(comparison)) == frame["score"].isna().all()


def cells(comparison: GridComparison, task: str | None = None) -> list[list[str]]:
    """Return the texts of a table, by layers and dims."""
    rows: list[list[str]] = comparison._texts(task).to_numpy().tolist()
    return rows


def test_counts_of_marks(ours: GridResult, theirs: GridResult) -> None:
    comparison = ours.compare(theirs)
    deltas = comparison.pivot() * 100
    assert cells(comparison) == [
        [f"{deltas[32][2]:+.2f} (1/2)", f"{deltas[64][2]:+.2f} (1/2)"],
        ["", f"{deltas[64][4]:+.2f} (1/2)"],
    ]
    assert cells(comparison, "A")[1] == ["", f"{comparison.pivot('A')[64][4] * 100:+.2f}*"]
    assert "*" not in "".join(functools.reduce(operator.iadd, cells(comparison, "B"), []))
    assert str(comparison).startswith("mean of 2 tasks: cosine_spearman, ours minus theirs, points\n")
    assert "\nk/m: k of m tests have p < 0.05 and the sign of the mean (jackknife; Holm over 6 tests)." in str(comparison)
    opposed = ours.compare(sts("lab/mixed", {"A": 0.4, "B": 0.1}, seed=1))
    assert cells(opposed)[0][0].endswith(" (1:1/2)")
    assert "k:l/m: and l the other sign" in str(opposed)


def test_a_task_without_a_score_makes_the_mean_nan_and_one_that_was_not_scored_empty(
    ours: GridResult, theirs: GridResult
) -> None:
    failed = (ours.frame["task"] == "A") & (ours.frame["dim"] == 32)
    lacks = (ours.frame["task"] == "B") & (ours.frame["num_layers"] == 4)
    broken = ours.frame.assign(score=ours.frame["score"].where(~failed))[~lacks]
    comparison = GridResult(broken, ours.items, "lab/ours").compare(theirs)
    assert np.isnan(comparison.pivot()[32][2])
    assert cells(comparison) == [["nan", cells(comparison)[0][1]], ["", ""]]
    assert cells(comparison, "A")[1][1].startswith(f"{comparison.pivot('A')[64][4] * 100:+.2f}")
    assert cells(comparison, "B")[0][0] == f"{comparison.pivot('B')[32][2] * 100:+.2f}"


def test_marks_untested_cells(ours: GridResult, theirs: GridResult) -> None:
    partial = GridResult(ours.frame, ours.items.drop(index=[0]), "lab/ours")  # A at 2L-32d
    comparison = partial.compare(theirs)
    assert comparison.to_frame()["test"].tolist() == ["none: no items", *["jackknife"] * 5]
    assert cells(comparison, "A")[0][0] == f"{comparison.pivot('A')[32][2] * 100:+.2f}?"
    assert cells(comparison)[0][0] == f"{comparison.pivot()[32][2] * 100:+.2f} (0/1)?"
    assert "".join(functools.reduce(operator.iadd, cells(comparison), [])).count("?") == 1
    assert "?" not in "".join(functools.reduce(operator.iadd, cells(comparison, "B"), []))
    assert "Holm over 5 tests). ? 1 of 6 differences are not tested (no items)." in str(comparison)


def test_two_sizes_of_one_model(ours: GridResult) -> None:
    larger, smaller = ours.at(num_layers=2, dims=64), ours.at(num_layers=2, dims=32)
    comparison = larger.compare(smaller)
    assert comparison.names == ("ours 2L-64d", "ours 2L-32d")
    for task, found in zip("AB", comparison.to_frame().itertuples(), strict=True):
        one, other = (next(iter(grid.at(tasks=task).items["values"])) for grid in (larger, smaller))
        r1, r2 = (stats.spearmanr(values, gold_of(task)).statistic for values in (one, other))
        assert found.delta == pytest.approx(r1 - r2)
        assert found.p_value == correlation_test(gold_of(task), one, other, ranks=True)


def test_a_single_test_tells_its_p(ours: GridResult, theirs: GridResult) -> None:
    one, other = (grid.at(tasks="A", num_layers=4) for grid in (ours, theirs))
    near = sts("lab/near", {"A": 0.12, "B": 0.2}, seed=1).at(tasks="A", num_layers=4)
    assert one.compare(other).to_frame()["p_value"].item() < 1e-4
    assert "* p < 0.05, here p < 0.001 (jackknife; Holm over 1 test)." in str(one.compare(other))
    p = one.compare(near).to_frame()["p_value"].item()
    assert 0.001 < p < 1
    assert f", here p = {p:.2g} (jackknife" in str(one.compare(near))
    assert "here" not in str(ours.compare(theirs))


def test_precisions_of_one_model() -> None:
    plain, packed = queries("lab/m", [A]), queries("lab/m", [B])
    packed = GridResult(packed.frame.assign(precision="int8"), packed.items.assign(precision="int8"), "lab/m")
    both = GridResult.merge([plain, packed])
    comparison = both.compare(both.at(precision="int8"))
    assert comparison.names == ("m", "m int8")
    assert comparison.to_frame()["p_value"].tolist() == [2.0**-3]


def changed(grid: GridResult, **items: Any) -> GridResult:
    cells = [cell | items for cell in grid.items.to_dict("records")]
    return GridResult(grid.frame, pd.DataFrame(cells), grid.model)


def test_figure_shows_which_model_is_better(ours: GridResult, theirs: GridResult, tmp_path: Path) -> None:
    comparison = ours.compare(sts("lab/mixed", {"A": 0.4, "B": 0.1}, seed=1))
    for task, blue in (("A", True), ("B", False)):
        figure = comparison.plot(tmp_path / f"{task}.png", task=task)
        axes, bar = figure.axes
        (image,) = axes.images
        values: Any = image.get_array()
        colours = image.to_rgba(values)
        assert np.ma.getmaskarray(values).tolist() == [[False, False], [True, False]]
        assert all((colours[y, x, 2] > colours[y, x, 0]) == blue for y, x in ((0, 0), (0, 1), (1, 1)))
        assert image.norm.vmax == -image.norm.vmin == pytest.approx(np.abs(comparison.pivot(task)).max().max() * 100)
        assert bar.get_ylabel() == "points"
        cells = {tuple(map(round, text.get_position())): text.get_text() for text in axes.texts}
        assert cells[0, 1] == ""
        assert cells[0, 0] == f"{comparison.pivot(task)[32][2] * 100:+.2f}*"
        assert "* p < 0.05 (jackknife; Holm over 6 tests)." in " ".join(figure.get_supxlabel().split())
        assert (tmp_path / f"{task}.png").read_bytes().startswith(b"\x89PNG")
    assert comparison.plot(title="mine").axes[0].get_title() == "mine"
    assert "\n1:1/2" in comparison.plot().axes[0].texts[0].get_text()
    ours.compare(ours).plot()


@pytest.mark.parametrize("sizes", [[Size(6, 384)], [Size(n, d) for n in (2, 4, 6) for d in (8, 16, 32, 64, 128, 256, 384)]])
def test_nothing_in_a_figure_overlaps(sizes: list[Size]) -> None:
    ours = sts("lab/all-MiniLM-L6-v2-two-dimensional", {"A": 0.1, "B": 0.4}, seed=0, sizes=sizes)
    theirs = sts("lab/all-MiniLM-L6-v2-matryoshka", {"A": 0.4, "B": 0.1}, seed=1, sizes=sizes)
    figure = ours.compare(theirs).plot()
    figure.draw_without_rendering()
    ticks = figure.axes[1].get_yticklabels()  # ticks beyond the bar are not drawn
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in ticks]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    assert len(boxes) >= 8
    for (one, box), (other, next_box) in combinations(boxes, 2):
        assert not box.shrunk(0.98, 0.95).overlaps(next_box.shrunk(0.98, 0.95)), (one, other)
    for text, box in boxes:
        assert figure.bbox.x0 <= box.x0, text
        assert box.x1 <= figure.bbox.x1, text
