"""Costs of sizes, latency in a grid, and the Pareto front, compared with loops over all sizes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sentence_transformers.util import quantize_embeddings

from st_matryoshka2d import GridResult, benchmark_latency
from st_matryoshka2d.grid.costs import costs, vector_bytes
from tests.support.grids import BITS, curve, random_grid, random_times, timed, with_scores


@pytest.mark.parametrize("dim", [1, 7, 8, 12, 64, 384])
def test_bytes_are_those_of_numpy_and_sentence_transformers(dim: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(200, dim)).astype(np.float32)
    for precision in ("float32", "float16", "int8", "uint8"):
        assert vector_bytes(dim, precision) == vectors[0].astype(precision).nbytes
    assert vector_bytes(dim, "bfloat16") == vector_bytes(dim, "float16")
    for precision in ("int4", "uint4"):
        assert vector_bytes(dim, precision) == np.packbits(np.ones(4 * dim, dtype=bool)).nbytes
    quantised: Any
    for quantised in ("float32", "int8", "uint8", "binary", "ubinary"):
        assert vector_bytes(dim, quantised) == quantize_embeddings(vectors, quantised)[0].nbytes  # type: ignore[union-attr]


@pytest.mark.parametrize("task", [None, "B"])
def test_costs_match_loop(task: str | None) -> None:
    times = random_times(0)
    grid = random_grid(0, precisions=tuple(BITS)).with_latency(times)
    every: list[Any] = list(grid.to_frame().itertuples())

    def score(layers: int, dim: int, precision: str) -> float:
        means = []
        for name in ("A", "B") if task is None else (task,):
            rows = [row for row in every if (row.task, row.num_layers, row.dim) == (name, layers, dim)]
            scores = [float(row.score) for row in rows if row.precision == precision and row.metric == "spearman"]
            means.append(sum(scores) / len(scores))
        return sum(means) / len(means)

    table = costs(grid.frame, grid.latency, task)
    assert len(table) == 3 * 3 * 3
    for row in table.itertuples():
        expected = score(row.num_layers, row.dim, row.precision)
        assert row.score == pytest.approx(expected)
        assert row.relative == pytest.approx(expected / score(4, 64, "float32"))
        assert row.bytes == -(-row.dim * BITS[row.precision] // 8)
        assert row.milliseconds_per_text == times.set_index("num_layers")["milliseconds_per_text"][row.num_layers]
        assert row.parameters == 1000 + 100 * row.num_layers
        assert row.megabytes == 4e-6 * row.parameters
    assert sorted(zip(table["num_layers"], table["dim"], table["bytes"], strict=True)) == list(
        zip(table["num_layers"], table["dim"], table["bytes"], strict=True)
    )


def test_unknown_costs_are_empty() -> None:
    grid = random_grid(0)
    table = costs(grid.frame, grid.latency)
    assert table[["milliseconds_per_text", "parameters", "megabytes"]].isna().all(axis=None)
    assert table["relative"].notna().all()
    own = costs(grid.frame, random_times(0).drop(columns="parameters"))
    assert own["parameters"].isna().all()
    assert own["milliseconds_per_text"].notna().all()
    ladder = GridResult(grid.to_frame().query("num_layers < 4 or dim < 64"))
    assert costs(ladder.frame)["relative"].isna().all()


def test_a_size_that_lacks_a_task_at_one_precision_has_no_score_there() -> None:
    frame = random_grid(0, precisions=("float32", "int8")).to_frame()
    grid = GridResult(frame[~((frame["task"] == "B") & (frame["precision"] == "int8") & (frame["dim"] == 8))])
    table = costs(grid.frame, grid.latency)
    assert (table["score"].isna() == ((table["precision"] == "int8") & (table["dim"] == 8))).all()
    assert costs(grid.frame, grid.latency, "A")["score"].notna().all()


def test_several_truncations_default_to_prefix() -> None:
    frame = random_grid(0).to_frame()
    both = pd.concat([frame.assign(truncation="first"), frame.assign(truncation="random", score=0.99)])
    pd.testing.assert_frame_equal(costs(GridResult(both).frame), costs(GridResult(frame).frame))
    alone = costs(GridResult(both).at(truncation="random").frame)
    assert set(alone["score"]) == {0.99}


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_derived_grids_keep_latency(tmp_path: Path, ending: str) -> None:
    times, expected = random_times(0).sample(frac=1, random_state=1), random_times(0)
    plain = random_grid(0, precisions=("float32", "int8"))
    grid = plain.with_latency(times)
    times["milliseconds_per_text"] = 1.0  # the grid has a copy
    loaded = []
    for number, original in enumerate((plain, grid)):
        original.save(tmp_path / f"{number}.{ending}")
        loaded.append(GridResult.load(tmp_path / f"{number}.{ending}"))
    assert plain.latency is loaded[0].latency is None
    a, b = grid.at(tasks="A"), plain.at(tasks="B")
    merged = [GridResult.merge([b, a]), GridResult.merge([loaded[1].at(tasks="B"), a])]
    for other in (grid, loaded[1], grid.at(precision="int8"), *merged):
        assert other.latency is not None
        pd.testing.assert_frame_equal(other.latency, expected)
    with pytest.raises(ValueError, match="different latencies"):
        GridResult.merge([a, b.with_latency(random_times(3))])


def test_grid_accepts_benchmark_latency(tiny: Any) -> None:
    times = benchmark_latency(tiny, batch_size=1, rounds=1, show_progress_bar=False)
    table = costs(random_grid(0).frame, times).groupby("num_layers").first()
    for depth, column in product((1, 2, 4), ("milliseconds_per_text", "parameters")):
        assert table[column][depth] == times.set_index("num_layers")[column][depth]


def members(table: pd.DataFrame) -> set[tuple[int, int, str]]:
    return set(zip(table["num_layers"], table["dim"], table["precision"], strict=True))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cost", [None, "bytes", "num_layers", ("parameters", "dim"), ("milliseconds_per_text",)])
def test_front_is_the_set_of_undominated_sizes(seed: int, cost: Any) -> None:
    grid = timed(seed, precisions=tuple(BITS))
    grid = with_scores(
        grid, lambda frame: frame["score"].where(~((frame["dim"] == 20) & (frame["num_layers"] == 2)), np.nan)
    )
    names = ["milliseconds_per_text", "bytes"] if cost is None else [cost] if isinstance(cost, str) else list(cost)
    rows = [row for row in costs(grid.frame, grid.latency).to_dict("records") if not np.isnan(row["score"])]
    expected = set()
    for row in rows:
        beaten = False
        for other in rows:
            no_worse = other["score"] >= row["score"] and all(other[name] <= row[name] for name in names)
            better = other["score"] > row["score"] or any(other[name] < row[name] for name in names)
            beaten = beaten or (no_worse and better)
        if not beaten:
            expected.add((row["num_layers"], row["dim"], row["precision"]))
    front = grid.pareto(cost)
    assert members(front) == expected
    assert len(front) == len(expected)
    assert front[names[0]].is_monotonic_increasing


def test_uses_layers_without_latency() -> None:
    grid = random_grid(0)
    assert members(grid.pareto()) == members(grid.pareto(["num_layers", "bytes"])) != members(grid.pareto("bytes"))


def test_the_front_prints_in_few_columns_and_is_a_table() -> None:
    front = curve().pareto("milliseconds_per_text")
    assert [line.split() for line in str(front).splitlines()] == [
        ["size", "score", "of", "4L-64d", "ms", "per", "text", "parameters", "MB", "bytes"],
        ["1L-64d", "60.00", "75.0", "%", "0.5", "1,100", "0.0044", "256"],
        ["2L-64d", "70.00", "87.5", "%", "0.9", "1,200", "0.0048", "256"],
        ["4L-64d", "80.00", "100.0", "%", "1.75", "1,400", "0.0056", "256"],
    ]
    assert type(front.head(1)) is type(front[["score", "bytes"]]) is pd.DataFrame
    untimed = GridResult(curve().to_frame()).pareto("bytes")
    assert str(untimed).splitlines()[0].split() == ["size", "score", "of", "4L-64d", "bytes"]
