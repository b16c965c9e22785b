"""Grids of other numbers than main scores: agreement with the whole model, other metrics, and truncations."""

from __future__ import annotations

import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, Size, TruncationResult, truncate
from st_matryoshka2d.grid.significance import paired_t_test
from st_matryoshka2d.model.identity import model_name, model_revision
from tests.support.declared import declare
from tests.support.grids import random_grid, random_times
from tests.support.results import assert_identical
from tests.support.truncations import SCORES, made_of

pytestmark = pytest.mark.filterwarnings("ignore:This model was not")

MEASURED = {Size(n, d): round((n / 4) ** 0.1 * (d / 32) ** 0.2, 4) for n, d in product((1, 2, 4), (8, 16, 32))}


@pytest.fixture
def aligned(tiny: SentenceTransformer) -> SentenceTransformer:
    """A model whose config says what `align` measured."""
    declare(tiny.config, agreement=MEASURED)
    return tiny


def test_the_grid_has_what_was_measured(aligned: SentenceTransformer, tmp_path: Path) -> None:
    grid = GridResult.from_agreement(aligned)
    grid.save(tmp_path / "agreement.json")
    for either in (grid, GridResult.load(tmp_path / "agreement.json")):
        assert {size: either.score(size) for size in either.sizes} == MEASURED
        assert (either.model, either.revision, either.full_size) == (model_name(aligned), model_revision(aligned), "4L-32d")
        assert str(either).splitlines()[0] == "agreement: correlation of similarities, percent"


@pytest.mark.parametrize("min_score", [0.7, 0.8, 0.95, 1.0])
def test_recommends_the_fewest_layers_that_agree(min_score: float, aligned: SentenceTransformer, tmp_path: Path) -> None:
    """At all dims; nobody is warned that there are no intervals, in a grid that is loaded neither."""
    expected = min(size for size, value in MEASURED.items() if value >= min_score and size.dim == 32)
    grid = GridResult.from_agreement(aligned)
    grid.save(tmp_path / "agreement.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = [either.recommend(min_score) for either in (grid, GridResult.load(tmp_path / "agreement.parquet"))]
    for choice in chosen:
        assert choice.size == expected
        assert choice.measure == "agreement"
        first, second, *cut = str(choice).splitlines()
        assert first.startswith(f"{expected}: {100 * MEASURED[expected]:.1f} % of the agreement of 4L-32d (the full size), ")
        assert second.startswith("Agreement is no score")
        assert [line.endswith(f"truncate(model, '{expected}', layers='ends')") for line in cut] == [True] * (
            expected.num_layers < 4
        )
        frame = choice.to_frame()
        assert set(frame.loc[frame["refused"] == "", "num_layers"]) == {n for n in (1, 2, 4) if n >= expected.num_layers}
        assert all(reason.startswith("share of the agreement ") for reason in set(frame["refused"]) - {""})


# Agreement, and share of the mean Spearman of four STS sets, of two models that were aligned with
# the sentences of STS-B.
MINILM = {
    "1L-64d": (0.549, 0.889), "1L-128d": (0.669, 0.911), "1L-384d": (0.700, 0.911),
    "3L-64d": (0.595, 0.953), "3L-128d": (0.759, 0.972), "3L-384d": (0.806, 0.975),
    "4L-64d": (0.642, 0.975), "4L-128d": (0.832, 0.994), "4L-384d": (0.887, 0.997),
    "6L-64d": (0.744, 0.975), "6L-128d": (0.926, 0.994), "6L-384d": (1.000, 1.000),
}  # fmt: skip


def test_narrow_sizes_that_keep_the_score_are_not_refused(tiny: SentenceTransformer) -> None:
    """Of all-MiniLM-L6-v2: few dims lose much agreement and little of the score, few layers both."""
    declare(tiny.config, agreement={Size.parse(name): agreement for name, (agreement, _) in MINILM.items()})
    grid = GridResult.from_agreement(tiny)
    frame = grid.recommend(0.8).to_frame()
    accepted = {f"{row.num_layers}L-{row.dim}d" for row in frame.itertuples() if not row.refused}
    assert accepted == {name for name in MINILM if not name.startswith("1L")} > {"4L-128d", "6L-64d"}
    assert min(share for name, (_, share) in MINILM.items() if name in accepted) > 0.95 > MINILM["1L-384d"][1]
    assert str(grid.recommend(0.8).size) == "3L-384d"
    assert str(grid.recommend(0.8, max_bytes=512).size) == "3L-128d"


def test_a_cut_is_compared_with_its_own_largest_size(aligned: SentenceTransformer) -> None:
    grid = GridResult.from_agreement(truncate(aligned, num_layers=2, dim=16))
    assert {size: grid.score(size) for size in grid.sizes} == {size: MEASURED[size] for size in (Size(2, 8), Size(2, 16))}
    assert str(grid.recommend(0.5)).startswith("2L-16d: 100.0 % of the agreement of 2L-16d (the full size), ")


def test_costs_and_figures_are_those_of_any_grid(aligned: SentenceTransformer, tmp_path: Path) -> None:
    grid = GridResult.from_agreement(aligned).with_latency(random_times(0))
    assert "ms per text" in str(grid.recommend(0.8, max_ms=10))
    front = grid.pareto("num_layers")
    assert [(row.num_layers, row.dim) for row in front.itertuples()] == [(1, 32), (2, 32), (4, 32)]
    assert "agreement" in str(front).splitlines()[0]
    assert "agreement" not in str(random_grid(0).pareto())
    grid.plot(tmp_path / "map.svg")
    grid.plot_pareto(tmp_path / "front.svg")


def test_beside_scores_it_is_one_of_the_tasks(aligned: SentenceTransformer) -> None:
    own, scored = GridResult.from_agreement(aligned), random_grid(0, dims=(8, 16, 32), tasks=("A",))
    both = GridResult.merge([own, GridResult(scored.to_frame(), model=own.model)])
    assert str(both.recommend(0.9, task="agreement")).split("\n")[1:] == str(own.recommend(0.9)).split("\n")[1:]
    for choice in (both.recommend(0.1, task="A"), both.recommend(0.1)):
        assert choice.measure == "score"
        assert "no score" not in str(choice)
    assert (
        str(own.recommend(0.9, reference=both, task="agreement")).splitlines()[0].count("the reference's agreement at") == 1
    )


QUERIES = [f"q{number}" for number in range(200)]


# shares of 6 layers
KEEP = {"ndcg_at_10": {2: 0.5, 4: 0.98, 6: 1.0}, "mrr_at_10": {2: 0.95, 4: 0.6, 6: 1.0}}


def values(metric: str, layers: int, seed: int) -> Any:
    """Scores of queries: the same for each depth, times its share."""
    return np.random.default_rng([seed, metric == "mrr_at_10"]).uniform(0.4, 0.9, len(QUERIES)) * KEEP[metric][layers]


def searched(seed: int = 0, task: str = "R", metrics: tuple[str, ...] = ("ndcg_at_10", "mrr_at_10")) -> GridResult:
    rows, items = [], []
    for layers in (2, 4, 6):
        place = {"task": task, "split": "test", "subset": "default", "num_layers": layers, "dim": 64}
        for metric in metrics:
            scores = values(metric, layers, seed)
            rows.append({**place, "metric": metric, "score": scores.mean(), "is_main": metric == "ndcg_at_10"})
            items.append({**place, "metric": metric, "ids": QUERIES, "values": scores, "gold": None})
        rows.append({**place, "metric": "map_at_5", "score": 0.1 * layers, "is_main": False})
        rows.append({**place, "metric": "nauc_map_at_5_std", "score": 0.1, "is_main": False})
    return GridResult(pd.DataFrame(rows), pd.DataFrame(items), "lab/m")


def test_compare_tests_the_queries_of_the_metric() -> None:
    first, other = searched(0), searched(1).named("other")
    frame = first.compare(other, metric="mrr_at_10", correction=None).to_frame()
    assert set(frame["metric"]) == {"mrr_at_10"}
    expected = [paired_t_test(values("mrr_at_10", layers, 0), values("mrr_at_10", layers, 1)) for layers in (2, 4, 6)]
    assert frame["p_value"].tolist() == pytest.approx(expected)
    assert frame["score"].tolist() == pytest.approx([values("mrr_at_10", layers, 0).mean() for layers in (2, 4, 6)])
    assert "R: mrr_at_10, lab/m minus other, points".replace("lab/", "") in str(first.compare(other, metric="mrr_at_10"))
    assert first.compare(other, metric="map_at_5").to_frame()["test"].tolist() == ["none: no items"] * 3


def test_recommend_and_pareto_choose_by_the_metric() -> None:
    grid = searched()
    assert (str(grid.recommend(0.9).size), str(grid.recommend(0.9, metric="mrr_at_10").size)) == ("4L-64d", "2L-64d")
    choice = grid.recommend(0.9, metric="mrr_at_10")
    assert "200 examples) of the mrr_at_10 of 6L-64d" in str(choice)
    assert choice.examples == len(QUERIES)
    assert choice.to_frame()["relative_low"].notna().all()
    assert grid.pareto(metric="mrr_at_10")["num_layers"].tolist() == [2, 6]
    assert grid.score("2L-64d", metric="mrr_at_10") == grid.pivot(metric="mrr_at_10")[64][2]
    assert "mrr_at_10" in grid.plot_pareto(metric="mrr_at_10").axes[0].get_ylabel()
    reference = searched(seed=3)
    choice = grid.recommend(0.5, metric="mrr_at_10", reference=reference)
    whole = values("mrr_at_10", 6, 3).mean()
    assert choice.to_frame()["relative"].max() == pytest.approx(values("mrr_at_10", 6, 0).mean() / whole)


def test_a_task_without_the_metric_is_not_left_out_of_the_mean() -> None:
    both = GridResult.merge([searched(task="R"), searched(task="S", metrics=("ndcg_at_10",))])
    with pytest.raises(ValueError, match=r"S: no mrr_at_10\. Select the tasks that have it: grid\.at\(tasks=\['R'\]\)"):
        both.pivot(metric="mrr_at_10")


def test_items_of_a_metric_are_those_of_the_main_score() -> None:
    grid = searched()
    turned = [ids if main else ids[::-1] for ids, main in zip(grid.items["ids"], [True, False] * 3, strict=True)]
    with pytest.raises(ValueError, match=r"R \(test, default\) at 2L-64d: the items of mrr_at_10 must have the ids"):
        GridResult(grid.frame, grid.items.assign(ids=turned))


def test_versions_that_keep_main_metrics_alone_read_and_write_files_of_the_same_form(tmp_path: Path) -> None:
    """They take the rows that have ids for items of main scores, one for each place."""
    searched().save(tmp_path / "grid.parquet")
    table = pq.read_table(tmp_path / "grid.parquet")
    rows = table.to_pandas()
    with_ids = rows[rows["ids"].notna()]
    assert with_ids["is_main"].all()
    assert not with_ids.duplicated(["task", "split", "subset", "num_layers", "dim"]).any()
    # what such a version writes: nothing but items of main scores
    older = [cells if main else None for cells, main in zip(table["values"].to_pylist(), rows["is_main"], strict=True)]
    column = table.column_names.index("values")
    pq.write_table(table.set_column(column, "values", [older]), tmp_path / "older.parquet")
    read = GridResult.load(tmp_path / "older.parquet")
    assert_identical(read, GridResult(searched().frame, searched().items.query("metric == 'ndcg_at_10'"), "lab/m"))
    with pytest.warns(UserWarning, match="No interval is known for the shares of the mrr_at_10"):
        assert str(read.recommend(0.9, metric="mrr_at_10").size) == "2L-64d"


@pytest.fixture(scope="module")
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
    # 4.302653 is the quantile 0.975 of Student's t with 2 degrees of freedom. At 4 dims s = 0.01,
    # mean 0.81; at 2 dims 0.62.
    half = 4.302653 * 0.01 * (4 / 3) ** 0.5
    assert (by_dim[4]["low"] * 0.9, by_dim[4]["high"] * 0.9) == pytest.approx((0.81 - half, 0.81 + half), abs=1e-6)
    assert 0.81 + half < 0.86
    assert {dim: found["order"] for dim, found in by_dim.items()} == {4: "helps", 2: "no difference"}
    worse = made_of(SCORES | {("first", 4): (0.76, 0.5)})
    assert 0.81 - half > 0.76
    assert row(worse.verdict("A"), dim=4)["order"] == "hurts"
    # above every seed, but within the interval
    between = made_of(SCORES | {("first", 4): (0.84, 0.5)})
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


def test_no_shares_of_negative_score() -> None:
    below = made_of(SCORES | {("first", 8): (-0.1, -0.1)})
    assert below.to_frame()["relative"].isna().all()
    assert set(below.verdict()["order"]) == {"unknown"}
    with pytest.raises(ValueError, match=r"The full size scores -0\.1000"):
        below.plot()
