"""The Pareto front, compared with loops over all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from st_matryoshka2d import GridResult
from st_matryoshka2d.grid.costs import costs
from tests.support.grids import BITS, curve, random_grid, timed, with_scores


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
        ["size", "score", "of", "4L-64d", "ms", "per", "text", "parameters", "bytes"],
        ["1L-64d", "60.00", "75.0", "%", "0.5", "1,100", "256"],
        ["2L-64d", "70.00", "87.5", "%", "0.9", "1,200", "256"],
        ["4L-64d", "80.00", "100.0", "%", "1.75", "1,400", "256"],
    ]
    assert type(front.head(1)) is type(front[["score", "bytes"]]) is pd.DataFrame
    untimed = GridResult(curve().to_frame()).pareto("bytes")
    assert str(untimed).splitlines()[0].split() == ["size", "score", "of", "4L-64d", "bytes"]
