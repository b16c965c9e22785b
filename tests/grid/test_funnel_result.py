"""Means, tables, files and the figure of a FunnelResult, compared with loops over its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from st_matryoshka2d import FunnelResult
from tests.support.grids import PAIRS, random_result


def mean(result: FunnelResult, column: str, first: str, second: str, k1: int, tasks: tuple[str, ...]) -> float:
    means = []
    for task in tasks:
        wanted = (task, first, second, k1)
        rows = [row for row in result.to_frame().to_dict("records") if tuple(row[n] for n in _NAMES) == wanted]
        means.append(sum(row[column] for row in rows) / len(rows))
    return float(sum(means) / len(means))


_NAMES = ("task", "first", "second", "k1")


@pytest.mark.parametrize(("task", "tasks"), [(None, ("A", "B")), ("A", ("A",))])
def test_kept_share_is_a_ratio_of_means(task: str | None, tasks: tuple[str, ...]) -> None:
    result = random_result()
    for (first, second), k1 in zip(PAIRS, (20, 100, 100, 20), strict=True):
        share = mean(result, "ndcg", first, second, k1, tasks) / mean(result, "ndcg_alone", first, second, k1, tasks)
        assert result.pivot(k1, task=task)[second][first] == pytest.approx(share)
        assert result.by_shortlist(second, task=task)[k1][first] == pytest.approx(share)
        recall = mean(result, "recall_at_k1", first, second, k1, tasks)
        assert result.pivot(k1, "recall_at_k1", task)[second][first] == pytest.approx(recall)
    assert list(result.pivot().index) == ["6L-64d binary", "6L-16d"]
    assert list(result.pivot().columns) == ["6L-64d", "6L-384d"]
    pd.testing.assert_frame_equal(result.pivot(), result.pivot(100))
    pd.testing.assert_frame_equal(result.by_shortlist(), result.by_shortlist("6L-384d"))


def test_costs() -> None:
    row = random_result().pivot(100, "second_multiply_adds")
    assert row["6L-384d"]["6L-16d"] == 70 * 384  # no shortlist is longer than the corpus
    assert random_result().pivot(20, "second_multiply_adds")["6L-384d"]["6L-16d"] == 20 * 384
    assert random_result().pivot(20, "first_multiply_adds")["6L-384d"]["6L-16d"] == 70 * 16
    assert random_result().pivot(20, "alone_multiply_adds")["6L-384d"]["6L-16d"] == 70 * 384
    assert random_result().pivot(20, "first_bytes")["6L-64d"].to_dict() == {"6L-64d binary": 8, "6L-16d": 64}
    assert random_result().pivot(20, "second_bytes")["6L-64d"].to_dict() == {"6L-64d binary": 256, "6L-16d": 256}


def test_kept_share_of_zero_score() -> None:
    result = random_result(ndcg_alone=0.0)
    assert result.pivot().isna().all(axis=None)
    assert " nan |" in result.to_markdown()
    result.plot()


def test_tables() -> None:
    result = random_result()
    table = result.by_shortlist("6L-64d", "recall", "B") * 100
    lines = result.to_markdown("6L-64d", "recall", "B").splitlines()
    assert lines[0] == "|         first | bytes | k1=20 | k1=100 |"
    assert lines[2] == f"| 6L-64d binary |     8 | {table[20].iloc[0]:.2f} |  {table[100].iloc[0]:.2f} |"
    assert len({len(line) for line in lines}) == 1
    alone = np.mean([mean(result, "ndcg_alone", "6L-64d binary", "6L-384d", 20, (task,)) for task in ("A", "B")])
    head = f"mean of 2 tasks: nDCG@10 kept of 6L-384d alone, which has {100 * alone:.2f}; percent"
    assert str(result) == f"{head}\n{result.to_markdown()}"
    across = FunnelResult(result.frame, "some model", "6L-384d")
    assert str(across).startswith("mean of 2 tasks, documents at 6L-384d: nDCG@10 kept of 6L-384d alone, which has")
    assert across.plot(task="A").axes[0].get_title() == "some model: A, documents at 6L-384d"


def test_largest_second_size_comes_last() -> None:
    frame = random_result().frame
    assert FunnelResult(frame.replace({"second": {"6L-64d": "3L-384d"}, "second_bytes": {256: 1536}})[::-1]).seconds == [
        "3L-384d",
        "6L-384d",
    ]


def test_the_figure(tmp_path: Path) -> None:
    result = random_result()
    (axes,) = result.plot(tmp_path / "kept.png", second="6L-64d", task="A").axes
    assert (tmp_path / "kept.png").stat().st_size > 10_000
    assert axes.get_title() == "some model: A"
    assert axes.get_ylabel() == "nDCG@10 kept of 6L-64d alone (%)"
    table = result.by_shortlist("6L-64d", task="A") * 100
    drawn = {str(line.get_label()): line.get_xydata() for line in axes.lines}
    for name, label in (("6L-16d", "6L-16d (64 bytes)"), ("6L-64d binary", "6L-64d binary (8 bytes)")):
        np.testing.assert_allclose(np.asarray(drawn[label]), [[20, table[20][name]], [100, table[100][name]]])
    assert result.plot(title="mine", value="recall_at_k1").axes[0].get_title() == "mine"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"k1": 21}, "no shortlist of length 21 in this result, only 20, 100"),
        ({"value": "kept"}, "no value 'kept' in this result, only k1, .*ndcg_kept"),
        ({"task": "C"}, "no task 'C' in this result, only A, B"),
    ],
)
def test_pivot_refuses_missing_rows(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_result().pivot(**wanted)


def test_tables_refuse_missing_size_and_value() -> None:
    with pytest.raises(ValueError, match="no second size '6L-16d' in this result, only 6L-64d, 6L-384d"):
        random_result().by_shortlist("6L-16d")
    with pytest.raises(ValueError, match="no value 'first_bytes' in this result, only ndcg_kept"):
        random_result().to_markdown(value="first_bytes")


def test_refuses_invalid_rows() -> None:
    frame = random_result().frame
    for wrong in (frame.drop(columns="k"), frame.assign(more=1), frame.iloc[:0], pd.concat([frame, frame.iloc[:1]])):
        with pytest.raises(ValueError, match=r"A FunnelResult (has|needs)"):
            FunnelResult(wrong)
