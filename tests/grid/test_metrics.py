"""Other metrics than the main one: compared, recommended and kept in files that other versions read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from st_matryoshka2d import GridResult
from st_matryoshka2d.grid.significance import paired_t_test
from tests.support.results import assert_identical

QUERIES = [f"q{number}" for number in range(200)]
KEEP = {"ndcg_at_10": {2: 0.5, 4: 0.98, 6: 1.0}, "mrr_at_10": {2: 0.95, 4: 0.6, 6: 1.0}}  # shares of 6 layers


def values(metric: str, layers: int, seed: int) -> Any:
    """Scores of queries: the same for each depth, times its share."""
    return np.random.default_rng([seed, metric == "mrr_at_10"]).uniform(0.4, 0.9, len(QUERIES)) * KEEP[metric][layers]


def searched(seed: int = 0, task: str = "R", metrics: tuple[str, ...] = ("ndcg_at_10", "mrr_at_10")) -> GridResult:
    rows, items = [], []
    for layers in (2, 4, 6):
        place = {"task": task, "split": "test", "subset": "default", "num_layers": layers, "dim": 64}
        for metric in metrics:
            each = values(metric, layers, seed)
            rows.append({**place, "metric": metric, "score": each.mean(), "is_main": metric == "ndcg_at_10"})
            items.append({**place, "metric": metric, "ids": QUERIES, "values": each, "gold": None})
        rows.append({**place, "metric": "map_at_5", "score": 0.1 * layers, "is_main": False})
        rows.append({**place, "metric": "nauc_map_at_5_std", "score": 0.1, "is_main": False})
    return GridResult(pd.DataFrame(rows), pd.DataFrame(items), "lab/m")


def test_compare_tests_the_queries_of_the_metric() -> None:
    one, other = searched(0), searched(1).named("other")
    frame = one.compare(other, metric="mrr_at_10", correction=None).to_frame()
    assert set(frame["metric"]) == {"mrr_at_10"}
    expected = [paired_t_test(values("mrr_at_10", layers, 0), values("mrr_at_10", layers, 1)) for layers in (2, 4, 6)]
    assert frame["p_value"].tolist() == pytest.approx(expected)
    assert frame["score"].tolist() == pytest.approx([values("mrr_at_10", layers, 0).mean() for layers in (2, 4, 6)])
    assert "R: mrr_at_10, lab/m minus other, points".replace("lab/", "") in str(one.compare(other, metric="mrr_at_10"))
    assert one.compare(other, metric="map_at_5").to_frame()["test"].tolist() == ["none: no items"] * 3


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


@pytest.mark.parametrize(
    "use",
    [
        lambda grid: grid.compare(grid, metric="mrr"),
        lambda grid: grid.recommend(metric="mrr"),
        lambda grid: grid.plot(metric="mrr"),
        lambda grid: grid.pareto(metric="mrr"),
        lambda grid: grid.score("6L-64d", metric="mrr"),
    ],
)
def test_an_unknown_metric_is_refused_with_those_there_are(use: Any) -> None:
    with pytest.raises(
        ValueError, match="no metric 'mrr' in this grid, only ndcg_at_10, mrr_at_10, map_at_5, and the nauc_"
    ):
        use(searched())


def test_a_task_without_the_metric_is_not_left_out_of_the_mean() -> None:
    both = GridResult.merge([searched(task="R"), searched(task="S", metrics=("ndcg_at_10",))])
    with pytest.raises(ValueError, match=r"S: no mrr_at_10\. Select the tasks that have it: grid\.at\(tasks=\['R'\]\)"):
        both.pivot(metric="mrr_at_10")


def test_items_of_a_metric_are_those_of_the_main_score() -> None:
    grid = searched()
    turned = [ids if main else ids[::-1] for ids, main in zip(grid.items["ids"], [True, False] * 3, strict=True)]
    with pytest.raises(ValueError, match=r"R \(test, default\) at 2L-64d: the items of mrr_at_10 must have the ids"):
        GridResult(grid.frame, grid.items.assign(ids=turned))


@pytest.mark.parametrize("ending", ["parquet", "json"])
def test_files_hold_the_queries_of_each_metric(ending: str, tmp_path: Path) -> None:
    searched().save(tmp_path / f"grid.{ending}")
    assert_identical(GridResult.load(tmp_path / f"grid.{ending}"), searched())


def test_versions_that_keep_main_metrics_alone_read_and_write_files_of_the_same_form(tmp_path: Path) -> None:
    """They take the rows that have ids for items of main scores, one for each place."""
    searched().save(tmp_path / "grid.parquet")
    table = pq.read_table(tmp_path / "grid.parquet")
    rows = table.to_pandas()
    with_ids = rows[rows["ids"].notna()]
    assert with_ids["is_main"].all()
    assert not with_ids.duplicated(["task", "split", "subset", "num_layers", "dim"]).any()
    # what such a version writes: nothing but items of main scores
    older = [each if main else None for each, main in zip(table["values"].to_pylist(), rows["is_main"], strict=True)]
    column = table.column_names.index("values")
    pq.write_table(table.set_column(column, "values", [older]), tmp_path / "older.parquet")
    read = GridResult.load(tmp_path / "older.parquet")
    assert_identical(read, GridResult(searched().frame, searched().items.query("metric == 'ndcg_at_10'"), "lab/m"))
    with pytest.warns(UserWarning, match="No interval is known for the shares of the mrr_at_10"):
        assert str(read.recommend(0.9, metric="mrr_at_10").size) == "2L-64d"
