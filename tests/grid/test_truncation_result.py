"""Means, spreads, verdicts and files of TruncationResult, from hand-made scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from st_matryoshka2d import GridResult, TruncationResult
from tests.support.truncations import SCORES, made_of


@pytest.fixture
def result() -> TruncationResult:
    return made_of(SCORES)


def row(table: pd.DataFrame, **values: Any) -> dict[Any, Any]:
    for column, value in values.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0].to_dict()


def test_the_frame_has_every_cell_relative_to_the_full_size(result: TruncationResult) -> None:
    frame = result.to_frame()
    assert len(frame) == len(SCORES)
    for (name, dim), by_task in SCORES.items():
        method, _, variant = name.partition("-")
        found = row(frame, method=method, variant=variant, dim=dim)
        assert found["score"] == pytest.approx(sum(by_task) / 2)
        assert found["relative"] == pytest.approx(sum(by_task) / 2 / 0.8)
        assert found["removed"] == {8: 0, 4: 50, 2: 75}[dim]
    assert row(result.to_frame("A"), method="window", dim=2)["relative"] == pytest.approx(0.3 / 0.9)


def test_the_summary_has_mean_and_spread_over_seeds(result: TruncationResult) -> None:
    found = row(result.summary("A"), method="random", dim=2)
    relative = np.array([0.50, 0.66, 0.70]) / 0.9
    mean = relative.sum() / 3
    assert found["runs"] == 3
    assert found["score"] == pytest.approx(0.62)
    assert found["relative"] == pytest.approx(mean)
    assert found["std"] == pytest.approx((((relative - mean) ** 2).sum() / 2) ** 0.5)
    assert (found["min"], found["max"]) == pytest.approx((0.5 / 0.9, 0.7 / 0.9))
    single = row(result.summary("A"), method="first", dim=2)
    assert (single["runs"], single["relative"]) == (1, pytest.approx(0.6 / 0.9))
    assert np.isnan(single["std"])


def test_verdict_compares_prefix_with_random_subsets(result: TruncationResult) -> None:
    by_dim = {dim: row(result.verdict("A"), dim=dim) for dim in (4, 2)}
    # 4.302653 is the quantile 0.975 of Student's t with 2 degrees of freedom. At 4 dims s = 0.01, mean 0.81; at 2 dims 0.62.
    half = 4.302653 * 0.01 * (4 / 3) ** 0.5
    assert (by_dim[4]["low"] * 0.9, by_dim[4]["high"] * 0.9) == pytest.approx((0.81 - half, 0.81 + half), abs=1e-6)
    assert 0.81 + half < 0.86
    assert {dim: found["order"] for dim, found in by_dim.items()} == {4: "helps", 2: "no difference"}
    worse = made_of(SCORES | {("first", 4): (0.76, 0.5)})
    assert 0.81 - half > 0.76
    assert row(worse.verdict("A"), dim=4)["order"] == "hurts"
    between = made_of(SCORES | {("first", 4): (0.84, 0.5)})  # above every seed, but within the interval
    assert row(between.verdict("A"), dim=4)["order"] == "no difference"


def test_a_seed_without_a_score_is_not_averaged_away() -> None:
    broken = made_of(SCORES | {("random-1", 4): (float("nan"), 0.6)})
    found = row(broken.summary(), method="random", dim=4)
    assert all(np.isnan(found[name]) for name in ("score", "relative", "std", "min", "max"))
    assert row(broken.verdict(), dim=4)["order"] == "unknown"
    assert row(broken.verdict("B"), dim=4)["order"] == "helps"
    assert "unknown, a score is missing" in str(broken)


def test_result_as_text(result: TruncationResult) -> None:
    assert str(result).splitlines() == [
        "mean of 2 tasks, 3 layers: 80.00 at the full 8 dims.",
        "4 of 8 dims (50 % removed): prefix keeps 95.0 %, random 88.1 % +- 0.6: the first coordinates carry more "
        "(windows 75.0 %, PCA 99.4 %).",
        "2 of 8 dims (75 % removed): prefix keeps 69.4 %, random 64.4 % +- 6.6: no difference seen (windows 31.2 %).",
    ]


def test_refuses_incomparable_results(result: TruncationResult) -> None:
    with pytest.raises(ValueError, match="at least two random subsets, got first, random-0"):
        made_of({key: value for key, value in SCORES.items() if key[0] in ("first", "random-0")})
    with pytest.raises(ValueError, match="needs prefixes and"):
        made_of({key: value for key, value in SCORES.items() if key[0] != "first"})
    deeper = result.grid.frame.assign(num_layers=2)
    with pytest.raises(ValueError, match=r"got layers \[2, 3\]"):
        TruncationResult(GridResult(pd.concat([deeper, result.grid.frame])))


def test_no_shares_of_negative_score() -> None:
    below = made_of(SCORES | {("first", 8): (-0.1, -0.1)})
    assert below.to_frame()["relative"].isna().all()
    assert set(below.verdict()["order"]) == {"unknown"}
    with pytest.raises(ValueError, match=r"The full size scores -0\.1000"):
        below.plot()
