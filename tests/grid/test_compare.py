"""Comparison of two grids: differences, the test of each cell, and marks in tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from st_matryoshka2d import GridResult, Size
from st_matryoshka2d.grid.comparison import GridComparison
from st_matryoshka2d.grid.significance import correlation_test, fisher_z_test, holm
from tests.support import grids
from tests.support.grids import model_grid

SIZES = list(map(Size.parse, grids.SIZES))


def row(task: str, size: Size, metric: str, score: float) -> dict[str, Any]:
    place = {"task": task, "split": "test", "subset": "default", "num_layers": size.num_layers, "dim": size.dim}
    return place | {"metric": metric, "score": score, "is_main": True}


@pytest.fixture
def ours() -> GridResult:
    return model_grid("lab/ours", {"A": 0.1, "B": 0.30}, seed=0)


@pytest.fixture
def theirs() -> GridResult:
    return model_grid("lab/theirs", {"A": 0.4, "B": 0.31}, seed=1)


def gold_of(grid: GridResult, task: str) -> Any:
    return grid.at(tasks=task).items["gold"].iloc[0]


@pytest.mark.parametrize(("test", "correction"), [("auto", "holm"), ("fisher", None)])
def test_correlations_cell_by_cell(ours: GridResult, theirs: GridResult, test: str, correction: str | None) -> None:
    frame = ours.compare(theirs, test=test, correction=correction, alpha=0.01).to_frame()
    assert [(r.task, Size(r.num_layers, r.dim)) for r in frame.itertuples()] == [(t, size) for t in "AB" for size in SIZES]
    for at, r in enumerate(frame.itertuples()):
        a, b = ours.items["values"][at], theirs.items["values"][at]
        gold = gold_of(ours, r.task)
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
    assert first["p_value"] == correlation_test(gold_of(ours, "A"), ours.items["values"][0], theirs.items["values"][0])


A, B = ([*values, *[0.5] * 26] for values in ((0.9, 0.5, 0.7, 0.6), (0.6, 0.4, 0.5, 0.5)))


def queries(model: str, ndcg: list[list[float]], *, turned: bool = False) -> GridResult:
    """Return a grid of the metric of each query; `turned` has the same queries in reverse order."""
    order = slice(None, None, -1 if turned else 1)
    scores = [row("R", size, "ndcg_at_10", float(np.mean(values))) for size, values in zip(SIZES, ndcg, strict=False)]
    ids = [f"query {number}" for number in range(len(ndcg[0]))][order]
    items = [{**score, "ids": ids, "values": np.array(values)[order]} for score, values in zip(scores, ndcg, strict=True)]
    return GridResult(pd.DataFrame(scores), pd.DataFrame(items).assign(gold=None), model)


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
    other = model_grid("lab/theirs", {"A": 0.4, "B": 0.31}, seed=1, sizes=["2L-64d", "4L-64d", "6L-64d"])
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
    (line,) = comparison.to_frame().to_dict("records")
    assert (line["test"], line["n"], line["significant"]) == ("none: no items", 0, False)
    assert np.isnan(line["p_value"])
    assert np.isnan(line["p_adjusted"])
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
    assert "*" not in str(cells(comparison, "B"))
    assert str(comparison).startswith("mean of 2 tasks: cosine_spearman, ours minus theirs, points\n")
    assert "\nk/m: k of m tests have p < 0.05 and the sign of the mean (jackknife; Holm over 6 tests)." in str(comparison)
    opposed = ours.compare(model_grid("lab/mixed", {"A": 0.4, "B": 0.1}, seed=1))
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
    assert str(cells(comparison)).count("?") == 1
    assert "?" not in str(cells(comparison, "B"))
    assert "Holm over 5 tests). ? 1 of 6 differences are not tested (no items)." in str(comparison)


def test_two_sizes_of_one_model(ours: GridResult) -> None:
    larger, smaller = ours.at(num_layers=2, dims=64), ours.at(num_layers=2, dims=32)
    comparison = larger.compare(smaller)
    assert comparison.names == ("ours 2L-64d", "ours 2L-32d")
    for task, line in zip("AB", comparison.to_frame().itertuples(), strict=True):
        first, second = (next(iter(grid.at(tasks=task).items["values"])) for grid in (larger, smaller))
        r1, r2 = (stats.spearmanr(values, gold_of(ours, task)).statistic for values in (first, second))
        assert line.delta == pytest.approx(r1 - r2)
        assert line.p_value == correlation_test(gold_of(ours, task), first, second, ranks=True)


def test_a_single_test_tells_its_p(ours: GridResult, theirs: GridResult) -> None:
    first, other = (grid.at(tasks="A", num_layers=4) for grid in (ours, theirs))
    near = model_grid("lab/near", {"A": 0.12, "B": 0.2}, seed=1).at(tasks="A", num_layers=4)
    assert first.compare(other).to_frame()["p_value"].item() < 1e-3
    assert "* p < 0.05, here p < 0.001 (jackknife; Holm over 1 test)." in str(first.compare(other))
    p = first.compare(near).to_frame()["p_value"].item()
    assert 0.001 < p < 1
    assert f", here p = {p:.2g} (jackknife" in str(first.compare(near))
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
