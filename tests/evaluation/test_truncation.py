"""Means, spreads, verdicts and figures of hand-made scores."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from st_matryoshka2d import GridResult, TruncationResult
from st_matryoshka2d.evaluation.truncation import truncation_dims

# By truncation and dim: the main scores of task A and of task B.
SCORES = {
    ("first", 8): (0.9, 0.7),
    ("first", 4): (0.86, 0.66),
    ("first", 2): (0.60, 0.51),
    ("random-0", 4): (0.80, 0.60),
    ("random-1", 4): (0.82, 0.60),
    ("random-2", 4): (0.81, 0.60),
    ("random-0", 2): (0.50, 0.41),
    ("random-1", 2): (0.66, 0.41),
    ("random-2", 2): (0.70, 0.41),
    ("window-4", 4): (0.70, 0.50),
    ("window-4", 2): (0.30, 0.20),
    ("pca-00c0ffee", 8): (0.92, 0.72),
    ("pca-00c0ffee", 4): (0.88, 0.71),
}


def made_of(scores: Mapping[tuple[str, int], tuple[float, ...]], model: str = "a/model") -> TruncationResult:
    rows = [
        {"task": task, "split": "test", "subset": "default", "num_layers": 3, "dim": dim, "truncation": name}
        | {"metric": metric, "score": score if metric == "ndcg_at_10" else -5.0, "is_main": metric == "ndcg_at_10"}
        for (name, dim), by_task in scores.items()
        for task, score in zip("AB", by_task, strict=False)
        for metric in ("ndcg_at_10", "map")
    ]
    return TruncationResult(GridResult(pd.DataFrame(rows), model=model))


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


def test_the_verdict_asks_whether_the_prefix_could_be_a_random_subset(result: TruncationResult) -> None:
    by_dim = {dim: row(result.verdict("A"), dim=dim) for dim in (4, 2)}
    # 4.302653 is the quantile 0.975 of Student's t with 2 degrees of freedom. At 4 dims s = 0.01, mean 0.81; at 2 dims 0.62.
    half = 4.302653 * 0.01 * (4 / 3) ** 0.5
    assert (by_dim[4]["low"] * 0.9, by_dim[4]["high"] * 0.9) == pytest.approx((0.81 - half, 0.81 + half), abs=1e-6)
    assert 0.81 + half < 0.86
    assert {dim: found["order"] for dim, found in by_dim.items()} == {4: "helps", 2: "no difference"}
    worse = made_of(SCORES | {("first", 4): (0.76, 0.5)})
    assert 0.81 - half > 0.76
    assert row(worse.verdict("A"), dim=4)["order"] == "hurts"
    between = made_of(SCORES | {("first", 4): (0.84, 0.5)})  # beyond every seed, but within the interval
    assert row(between.verdict("A"), dim=4)["order"] == "no difference"


def test_a_seed_without_a_score_is_not_averaged_away() -> None:
    broken = made_of(SCORES | {("random-1", 4): (float("nan"), 0.6)})
    found = row(broken.summary(), method="random", dim=4)
    assert all(np.isnan(found[name]) for name in ("score", "relative", "std", "min", "max"))
    assert row(broken.verdict(), dim=4)["order"] == "unknown"
    assert row(broken.verdict("B"), dim=4)["order"] == "helps"
    assert "not known" in str(broken)


def test_printing_says_what_each_dim_keeps(result: TruncationResult) -> None:
    assert str(result).splitlines() == [
        "mean of 2 tasks, 3 layers: 80.00 at the full 8 dims.",
        "4 of 8 dims (50 % removed): prefix keeps 95.0 %, random 88.1 % +- 0.6: the first coordinates carry more "
        "(windows 75.0 %, PCA 99.4 %).",
        "2 of 8 dims (75 % removed): prefix keeps 69.4 %, random 64.4 % +- 6.6: no difference seen (windows 31.2 %).",
    ]


@pytest.mark.parametrize("ending", ["parquet", "json"])
def test_a_result_is_kept_in_a_file(result: TruncationResult, tmp_path: Path, ending: str) -> None:
    result.save(tmp_path / f"result.{ending}")
    again = TruncationResult.load(tmp_path / f"result.{ending}")
    pd.testing.assert_frame_equal(again.to_frame(), result.to_frame())
    assert (str(again), again.grid.model) == (str(result), "a/model")
    result.grid.at(truncation="first").save(tmp_path / f"grid.{ending}")
    with pytest.raises(ValueError, match="at least two random subsets are compared, got first"):
        TruncationResult.load(tmp_path / f"grid.{ending}")


def test_what_cannot_be_compared(result: TruncationResult) -> None:
    with pytest.raises(ValueError, match="at least two random subsets are compared, got first, random-0"):
        made_of({key: value for key, value in SCORES.items() if key[0] in ("first", "random-0")})
    with pytest.raises(ValueError, match="Prefixes and"):
        made_of({key: value for key, value in SCORES.items() if key[0] != "first"})
    deeper = result.grid.frame.assign(num_layers=2)
    with pytest.raises(ValueError, match=r"got layers \[2, 3\]"):
        TruncationResult(GridResult(pd.concat([deeper, result.grid.frame])))


def test_nothing_is_relative_to_a_score_below_zero() -> None:
    below = made_of(SCORES | {("first", 8): (-0.1, -0.1)})
    assert below.to_frame()["relative"].isna().all()
    assert set(below.verdict()["order"]) == {"unknown"}
    with pytest.raises(ValueError, match=r"The full size scores -0\.1000"):
        below.plot()


def assert_labels_do_not_overlap(figure: Figure) -> None:
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw(renderer)
    for panel in figure.axes:
        for axis in (panel.xaxis, *(child.xaxis for child in panel.child_axes)):
            labels = [*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)]
            texts = [label for label in labels if label.get_text()]
            boxes = [label.get_window_extent(renderer) for label in texts]
            assert len(boxes) > 2
            assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_the_figure_has_a_line_for_each_method_and_a_band_for_each_spread(result: TruncationResult, tmp_path: Path) -> None:
    figure = result.plot(tmp_path / "curves.png", task="A")
    (panel,) = figure.axes
    lines: dict[Any, Any] = {line.get_label(): line.get_xydata() for line in panel.lines[1:]}  # the first is at 100 %
    assert lines["first coordinates"] == pytest.approx(np.array([[0, 100], [50, 95.5556], [75, 66.6667]]), abs=1e-3)
    assert lines["random coordinates (3, mean ± s.d.)"] == pytest.approx(np.array([[50, 90], [75, 68.8889]]), abs=1e-3)
    assert lines["windows"] == pytest.approx(np.array([[50, 77.7778], [75, 33.3333]]), abs=1e-3)
    assert lines["principal components"] == pytest.approx(np.array([[0, 102.2222], [50, 97.7778]]), abs=1e-3)
    (band,) = panel.collections
    heights = {tuple(np.round(corner, 3)) for corner in np.asarray(band.get_paths()[0].vertices)}
    spread = np.std([0.50, 0.66, 0.70], ddof=1) / 0.9 * 100
    assert {(50.0, 91.111), (50.0, 88.889), (75.0, round(68.8889 + spread, 3))} <= heights
    assert figure.get_suptitle() == "A, 3 layers"
    assert panel.get_title() == "a/model"
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == set(lines)
    assert (tmp_path / "curves.png").stat().st_size > 10_000


@pytest.mark.parametrize("full_dim", [384, 768, 1024])
def test_the_dims_above_the_figure_do_not_overlap(full_dim: int) -> None:
    dims = truncation_dims(full_dim)
    scores = {(name, dim): (0.5,) for name in ("first", "random-0", "random-1") for dim in dims}
    figure = made_of(scores).plot()
    assert_labels_do_not_overlap(figure)
    (above,) = figure.axes[0].child_axes
    lower, upper = ([int(label.get_text()) for label in above.get_xticklabels(minor=minor)] for minor in (False, True))
    assert {full_dim, 256, 128, 64} <= set(lower)
    assert sorted([*lower, *upper], reverse=True) == dims
    for minor, told in ((False, lower), (True, upper)):
        assert above.get_xticks(minor=minor) == pytest.approx([100 - 100 * dim / full_dim for dim in told])


def test_many_dims_are_thinned_out_above_the_figure() -> None:
    scores = {(name, dim): (0.5,) for name in ("first", "random-0", "random-1") for dim in range(8, 385, 8)}
    assert_labels_do_not_overlap(made_of(scores).plot())


def test_two_models_in_one_figure(result: TruncationResult, tmp_path: Path) -> None:
    other = made_of({key: (a / 2, b / 2) for key, (a, b) in SCORES.items()}, model="an/other")
    figure = result.plot_against(other, tmp_path / "two.svg")
    scores, relative = figure.axes
    for panel, share in ((scores, 0.8), (relative, 1.0)):
        lines: dict[Any, Any] = {line.get_label(): line.get_ydata() for line in panel.lines}
        assert set(lines) == {
            f"{name}: {kind} coordinates" for name in ("a/model", "an/other") for kind in ("first", "random")
        }
        assert lines["a/model: first coordinates"] == pytest.approx(np.array([100, 95, 69.375]) * share)
    assert [np.asarray(line.get_ydata())[0] for line in scores.lines][::2] == pytest.approx([80, 40])
    bands = [np.ptp(np.asarray(band.get_paths()[0].vertices)[:, 1]) for band in scores.collections]
    assert bands[0] == pytest.approx(2 * bands[1])
    assert_labels_do_not_overlap(figure)
    assert (tmp_path / "two.svg").exists()
    named = result.plot_against(other, labels=("plain", "matryoshka"))
    assert "matryoshka: random coordinates" in [text.get_text() for text in named.legends[0].get_texts()]


def test_models_that_cannot_be_told_apart_or_compared(result: TruncationResult) -> None:
    with pytest.raises(ValueError, match="called 'a/model' and 'a/model'; give labels"):
        result.plot_against(made_of(SCORES))
    with pytest.raises(ValueError, match=r"different tasks: \['A', 'B'\] and \['A'\]"):
        result.plot_against(made_of({key: value[:1] for key, value in SCORES.items()}, model="an/other"))
