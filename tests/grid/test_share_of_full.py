"""Intervals of the shares of the full score, and what `recommend` says with them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from st_matryoshka2d import DataWarning, GridResult, Size
from st_matryoshka2d.grid.grid_tables import Items
from st_matryoshka2d.grid.items import FEWEST
from st_matryoshka2d.grid.share_of_full import DRAWS, at_once, resampled_scores
from tests.support.grids import pairs_grid

NOISE = {"1L-8d": 1.0, "2L-8d": 0.55, "2L-64d": 0.4, "4L-64d": 0.3}


@pytest.mark.parametrize("metric", ["cosine_spearman", "cosine_pearson", "ndcg_at_10"])
@pytest.mark.parametrize("rounded", [False, True])
def test_resampled_scores_match_a_loop(metric: str, *, rounded: bool) -> None:
    rng = np.random.default_rng(0)
    gold, *values = (np.round(row, 0 if rounded else 9) for row in rng.normal(size=(3, 40)) + rng.normal(size=40))
    models = [Items([""] * 40, row, None if "ndcg" in metric else gold) for row in values]
    resampled = resampled_scores(models, metric, np.random.default_rng(1))
    drawn = np.random.default_rng(1).integers(40, size=(40, DRAWS)).T
    score = {"cosine_spearman": stats.spearmanr, "cosine_pearson": stats.pearsonr}.get(metric)
    for model, row in enumerate(values):
        for draw in (0, 1, 2, DRAWS - 1):
            at = drawn[draw]
            expected = row[at].mean() if score is None else score(row[at], gold[at]).statistic
            assert resampled[model, draw] == pytest.approx(expected, abs=1e-12)


def test_lower_ends_hold_for_all_sizes_at_once() -> None:
    """Of many estimates that err independently, all lower ends are below the truth in 95 % of the runs, not in 0.95^20."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(300):
        estimates = 0.9 + 0.01 * rng.normal(size=20)
        low, high = at_once(estimates, estimates[:, None] + 0.01 * rng.normal(size=(20, 500)))
        held.append((low <= 0.9).all())
        np.testing.assert_allclose(estimates - low, high - estimates)
    assert 0.91 < np.mean(held) < 0.985


def test_proposes_by_the_lower_end() -> None:
    grid = pairs_grid(NOISE, 300)
    frame = grid.recommend(0.5).to_frame().set_index(["num_layers", "dim"])
    shares = frame[["relative_low", "relative", "relative_high"]]
    assert shares.loc[(4, 64)].tolist() == [1, 1, 1]
    smaller = shares.drop((4, 64)).to_numpy()
    assert (np.diff(smaller, axis=1) > 0.001).all()
    low, share = shares.loc[(2, 64), ["relative_low", "relative"]]
    sure, unsure = grid.recommend(low - 1e-6), grid.recommend((low + share) / 2)
    assert (sure.size, unsure.size) == (Size(2, 64), Size(4, 64))
    assert re.match(r"2L-64d: [\d.]+ % \([\d.]+ to [\d.]+ % on 300 examples\) of the score of 4L-64d \(the full", str(sure))
    assert str(unsure).startswith("4L-64d: 100.0 % of the score of 4L-64d (the full size), ")
    refused = unsure.to_frame().set_index(["num_layers", "dim"])["refused"]
    assert re.fullmatch(r"share of the score [\d.]+ %, perhaps only [\d.]+ %, at least [\d.]+ % wanted", refused[2, 64])
    with pytest.raises(ValueError, match="meets every limit"):
        grid.at(num_layers=[1, 2]).recommend((low + share) / 2, reference=grid)


def test_a_refusal_names_a_share_that_would_be_accepted() -> None:
    grid = pairs_grid(NOISE, 300)
    with pytest.raises(ValueError, match="meets every limit") as refusal:
        grid.recommend(0.999, max_bytes=32)
    told = re.search(r"Relax one: share of the score at least ([\d.]+) % \((\S+)\)", str(refusal.value))
    assert told is not None
    assert str(grid.recommend(float(told[1]) / 100, max_bytes=32).size) == told[2]
    with pytest.raises(ValueError, match="meets every limit"):
        grid.recommend(float(told[1]) / 100 + 0.001, max_bytes=32)


def test_intervals_agree_with_fresh_samples() -> None:
    """The share of one size varies over samples as much as the interval says."""
    shares = []
    for rng in map(np.random.default_rng, range(200)):
        gold, shared, own = rng.normal(size=(3, 150))
        small, full = (gold + 0.3 * shared + noise * own for noise in (0.5, 0.3))
        shares.append(stats.spearmanr(small, gold).statistic / stats.spearmanr(full, gold).statistic)
    row = pairs_grid({"2L-8d": 0.5, "4L-64d": 0.3}, 150).recommend(0.1).to_frame().iloc[0]
    assert row["relative"] - row["relative_low"] == pytest.approx(stats.norm.ppf(0.95) * np.std(shares), rel=0.35)


def test_few_examples_are_refused() -> None:
    few, enough = pairs_grid(NOISE, FEWEST - 1), pairs_grid(NOISE, FEWEST)
    for limits in ({"min_score": 0.9}, {"min_score": None, "max_bytes": 100}, {"reference": few}):
        with pytest.raises(ValueError, match=f"^{FEWEST - 1} examples cannot tell which size .* at least {FEWEST} queries"):
            few.recommend(**limits)
    assert f"on {FEWEST} examples" in str(enough.recommend(None, max_bytes=100))
    one_of_two = GridResult.merge([enough, GridResult(*_renamed(few, "B"), full_size="4L-64d")])
    with pytest.raises(ValueError, match=f"{FEWEST - 1} examples"):
        one_of_two.recommend()
    assert one_of_two.recommend(task="A").examples == FEWEST


def _renamed(grid: GridResult, task: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    return grid.frame.assign(task=task), grid.items.assign(task=task)


def test_shares_of_a_reference() -> None:
    before, after = pairs_grid(NOISE, 300), pairs_grid({name: value * 0.9 for name, value in NOISE.items()}, 300)
    own, of_before = after.recommend(0.1).to_frame(), after.recommend(0.1, reference=before).to_frame()
    assert (own.query("num_layers == 4")["relative_low"] == 1).all()
    full = of_before.query("num_layers == 4").iloc[0]
    assert full["relative_low"] < full["relative"] < full["relative_high"]
    with pytest.warns(DataWarning, match="the grid or its reference has no scores of single examples of A"):
        assert after.recommend(0.1, reference=GridResult(before.frame)).examples == 0


def test_without_examples_the_scores_alone_decide() -> None:
    grid = pairs_grid(NOISE, 300)
    for bare in (GridResult(grid.frame), replace(grid, frame=grid.frame.assign(score=grid.frame["score"] - 0.01))):
        with pytest.warns(
            DataWarning, match="No interval is known for the shares of the score: the grid has no scores"
        ) as seen:
            choice = bare.recommend(0.95)
        assert seen[0].filename == __file__
        frame = choice.to_frame()
        assert frame[["relative_low", "relative_high"]].isna().all(axis=None)
        assert (frame.query("refused == ''")["relative"] >= 0.95).all()
        assert "examples" not in str(choice)
