"""GridResult: means as in mteb, tables of exactly the scored cells, and one table of several."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from st_matryoshka2d import GridResult, Size
from tests.support.grids import random_grid

LADDER = random_grid(0, (2, 4, 6), (32, 64, 128), tasks=("B", "A")).to_frame().query("dim == 2 ** (num_layers / 2 + 4)")


@pytest.fixture
def grid() -> GridResult:
    """Two tasks with two splits each; their main scores have different metrics, and B lacks the last size."""
    frame = random_grid(0, (1, 3), (8, 128, 16)).to_frame()
    frame["is_main"] = (frame["metric"] == "spearman") == (frame["task"] == "A")
    lacks = (frame["task"] == "B") & (frame["num_layers"] == 3) & (frame["dim"] == 16) & (frame["split"] == "test")
    return GridResult(frame[~lacks])


def mean(grid: GridResult, size: Size, task: str, metric: str | None) -> float:
    """Compute the mean over splits by a loop."""
    scores = [
        row.score
        for row in grid.to_frame().itertuples()
        if (row.task, row.num_layers, row.dim) == (task, size.num_layers, size.dim)
        and (row.is_main if metric is None else row.metric == metric)
    ]
    return sum(scores) / len(scores)


@pytest.mark.parametrize("metric", [None, "pearson", "spearman"])
def test_a_pivot_is_the_mean_over_tasks_of_the_mean_within_each(grid: GridResult, metric: str | None) -> None:
    for tasks in (["A"], ["B"], ["A", "B"]):
        pivot = grid.pivot(tasks[0] if len(tasks) == 1 else None, metric)
        assert pivot.index.tolist() == [1, 3]
        assert [int(dim) for dim in pivot.columns] == [8, 16, 128]
        assert (pivot.index.name, pivot.columns.name) == ("num_layers", "dim")
        for size in grid.sizes:
            expected = np.mean([mean(grid, size, task, metric) for task in tasks])
            assert pivot.loc[size.num_layers, size.dim] == pytest.approx(expected, abs=1e-12)
    by_task = grid.by_task(metric)
    assert (by_task.index.tolist(), by_task.columns.tolist()) == (["A", "B"], [str(size) for size in grid.sizes])
    for size in grid.sizes:
        assert by_task[str(size)].tolist() == pytest.approx([mean(grid, size, task, metric) for task in "AB"])


def test_the_frame_cannot_be_changed_from_outside(grid: GridResult) -> None:
    frame = grid.to_frame()
    copied, before = GridResult(frame), grid.score("1L-8d")
    returned = copied.to_frame()
    frame["score"] = returned["score"] = 0.0
    assert copied.score("1L-8d") == before
    with pytest.raises(AttributeError):
        grid.frame = frame  # type: ignore[misc]


def test_a_score_that_is_nan_makes_the_mean_nan(grid: GridResult) -> None:
    frame = grid.to_frame()
    frame.loc[frame.query("task == 'B' and is_main and num_layers == 1 and dim == 16").index[0], "score"] = np.nan
    broken = GridResult(frame)
    assert np.isnan([broken.score("1L-16d"), broken.score("1L-16d", "B")]).all()
    assert np.isfinite(broken.score("1L-16d", "A"))
    assert int(broken.pivot().isna().to_numpy().sum()) == str(broken).count("nan") == 1


def test_a_task_that_lacks_a_size_makes_its_mean_nan() -> None:
    grid = GridResult(LADDER[(LADDER["task"] == "B") | (LADDER["dim"] < 128)])
    assert np.isnan(grid.score("6L-128d"))
    assert np.isfinite([grid.score("6L-128d", "B"), grid.score("4L-64d")]).all()
    assert grid.by_task().isna().to_numpy().tolist() == [[False] * 3, [False, False, True]]
    assert grid.by_task().index.tolist() == ["B", "A"]
    table, note = str(grid).split("\n\n")
    assert [len(row) for row in parsed(table)[2:]] == [2, 2, 1]
    assert note == "There is no mean if a task was not scored: A lacks 6L-128d."
    assert "\n\n" not in str(grid.at(tasks="A"))


def parsed(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()]


def test_prints_the_pivot_in_percent(grid: GridResult) -> None:
    _, head, *body = parsed(str(grid))
    assert head == ["layers", "/", "dim", "8", "16", "128"]
    assert [row[0] for row in body] == ["1", "3"]
    printed = np.array([[float(cell) for cell in row[1:]] for row in body])
    assert np.abs(printed - grid.pivot().to_numpy() * 100).max() <= 0.005 + 1e-9
    assert len({len(line) for line in str(grid).splitlines()[1:]}) == 1


def test_a_table_names_the_precisions_that_it_does_not_show() -> None:
    grid = random_grid(0, precisions=("int8", "float32", "binary"))
    table, note = str(grid).split("\n\n")
    assert note == "Also int8, binary: grid.at(precision=...)."
    assert parsed(table)[1:] == parsed(str(grid.at(precision="float32")))[1:]
    assert str(grid).startswith("mean of 2 tasks: spearman, float32, percent\n")
    assert "Also" not in str(grid.at(precision="int8"))


def test_the_only_precision_is_taken_and_named() -> None:
    grid = random_grid(0, precisions=("float32", "int8")).at(precision="int8")
    as_if_plain = GridResult(grid.to_frame().drop(columns="precision"))
    pd.testing.assert_frame_equal(grid.pivot(), as_if_plain.pivot())
    pd.testing.assert_frame_equal(grid.by_task(), as_if_plain.by_task())
    assert grid.score("4L-64d") == as_if_plain.score("4L-64d")
    assert str(grid) == str(as_if_plain).replace("spearman, percent", "spearman, int8, percent")
    assert grid.plot().axes[1].get_ylabel() == "spearman, int8 (%)"


def test_of_several_tables_one_that_was_scored_is_shown_and_none_is_taken() -> None:
    """The defaults, float32 and documents at the same size, are there, but not together."""
    frame, plain = random_grid(0).to_frame(), {"precision": "float32", "documents": "same size"}
    parts = [frame.assign(**plain | other) for other in ({"precision": "int8"}, {"documents": "4L-64d"})]
    grid = GridResult(pd.concat(parts))
    assert str(grid).startswith("mean of 2 tasks: spearman, float32, documents at 4L-64d, percent\nquery layers / dim")
    assert str(grid).endswith("\n\nAlso int8: grid.at(precision=...).\n\nAlso same size: grid.at(documents=...).")
    with pytest.raises(ValueError, match="several document sizes: 4L-64d, same size"):
        grid.pivot()


def test_several_truncations_without_prefixes_are_asked_for_too() -> None:
    frame = random_grid(0).to_frame()
    grid = GridResult(pd.concat([frame.assign(truncation=name) for name in ("random-0", "random-1")]))
    for view in (GridResult.pivot, GridResult.recommend, GridResult.pareto):
        with pytest.raises(ValueError, match="random-0, random-1"):
            view(grid)  # type: ignore[operator]
    assert ", random-0, percent" in str(grid)


def test_a_size_that_has_another_precision_alone_was_not_scored() -> None:
    plain, int8 = (random_grid(0, [layers], precisions=[name]) for layers, name in ((1, "float32"), (2, "int8")))
    with pytest.raises(ValueError, match=r"2L-8d .*float32.* 1L-8d"):
        GridResult.merge([plain, int8]).score("2L-8d")
