"""GridResult: means as in mteb, and tables and figures of exactly the scored cells."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from st_matryoshka2d import GridResult, Size
from tests.support.grids import random_grid

LADDER = [Size(2, 32), Size(4, 64), Size(6, 128)]


def rows(task: str, sizes: list[Size], seed: int, main: str = "cosine_spearman") -> list[dict[str, Any]]:
    """Generate random scores for two splits of two subsets."""
    generator = np.random.default_rng(seed)
    return [
        {
            "task": task,
            "split": split,
            "subset": subset,
            "num_layers": size.num_layers,
            "dim": size.dim,
            "metric": metric,
            "score": float(generator.uniform(-1, 1)),
            "is_main": metric == main,
        }
        for size, split, subset, metric in product(sizes, ("dev", "test"), ("en", "fr"), ("cosine_spearman", "pearson"))
    ]


@pytest.fixture
def table() -> list[dict[str, Any]]:
    sizes = [Size(n, d) for n in (1, 3) for d in (8, 128, 16)]
    return rows("A", sizes, seed=0) + rows("B", sizes, seed=1, main="pearson")[:-4]


@pytest.fixture
def grid(table: list[dict[str, Any]]) -> GridResult:
    return GridResult(pd.DataFrame(table))


def mean(table: list[dict[str, Any]], size: Size, task: str, metric: str | None) -> float:
    """Compute the mean over splits and subsets by a loop."""
    scores: list[float] = [
        row["score"]
        for row in table
        if (row["task"], row["num_layers"], row["dim"]) == (task, size.num_layers, size.dim)
        and (row["is_main"] if metric is None else row["metric"] == metric)
    ]
    return sum(scores) / len(scores)


@pytest.mark.parametrize("metric", [None, "pearson", "cosine_spearman"])
@pytest.mark.parametrize("task", [None, "A", "B"])
def test_a_pivot_is_the_mean_over_tasks_of_the_mean_within_each(
    grid: GridResult, table: list[dict[str, Any]], task: str | None, metric: str | None
) -> None:
    pivot = grid.pivot(task, metric)
    assert pivot.index.tolist() == [1, 3]
    assert [int(dim) for dim in pivot.columns] == [8, 16, 128]
    assert (pivot.index.name, pivot.columns.name) == ("num_layers", "dim")
    for size in grid.sizes:
        expected = [mean(table, size, name, metric) for name in (["A", "B"] if task is None else [task])]
        assert pivot.loc[size.num_layers, size.dim] == pytest.approx(sum(expected) / len(expected), abs=1e-12)


def test_the_frame_cannot_be_changed_from_outside(table: list[dict[str, Any]]) -> None:
    frame = pd.DataFrame(table)
    grid = GridResult(frame)
    before = grid.score("1L-8d")
    frame["score"] = 0.0
    copy = grid.to_frame()
    copy["score"] = 0.0
    assert grid.score("1L-8d") == before
    with pytest.raises(AttributeError):
        grid.frame = frame  # type: ignore[misc]


def test_nan_makes_mean_nan(table: list[dict[str, Any]]) -> None:
    broken = [row for row in table if row["is_main"] and row["task"] == "B" and (row["num_layers"], row["dim"]) == (1, 16)]
    broken[0]["score"] = float("nan")
    grid = GridResult(pd.DataFrame(table))
    assert np.isnan(grid.score("1L-16d"))
    assert np.isnan(grid.score("1L-16d", "B"))
    assert np.isfinite(grid.score("1L-16d", "A"))
    assert int(grid.pivot().isna().to_numpy().sum()) == 1
    assert str(grid).count("nan") == 1


def test_a_task_that_lacks_a_size_makes_its_mean_nan() -> None:
    grid = GridResult(pd.DataFrame(rows("A", LADDER, seed=0) + rows("B", LADDER[:2], seed=1)))
    assert np.isnan(grid.score("6L-128d"))
    assert np.isfinite(grid.score("6L-128d", "A"))
    assert np.isfinite(grid.score("4L-64d"))
    table, note = str(grid).split("\n\n")
    assert [len(row) for row in parsed(table)[2:]] == [2, 2, 1]
    assert note == "There is no mean if a task was not scored: B lacks 6L-128d."
    assert "\n\n" not in str(grid.at(tasks="B"))


def test_tasks_by_sizes(grid: GridResult, table: list[dict[str, Any]]) -> None:
    found = grid.by_task()
    assert found.index.tolist() == ["A", "B"]
    assert found.columns.tolist() == [str(size) for size in grid.sizes]
    for size in grid.sizes:
        for task in "AB":
            assert found[str(size)][task] == pytest.approx(mean(table, size, task, None))
            assert grid.by_task("pearson")[str(size)][task] == pytest.approx(mean(table, size, task, "pearson"))
    ladder = GridResult(pd.DataFrame(rows("B", LADDER, seed=0) + rows("A", LADDER[:2], seed=1)))
    assert ladder.by_task().isna().to_numpy().tolist() == [[False] * 3, [False, False, True]]
    assert ladder.by_task().index.tolist() == ["B", "A"]


def test_table_names_omitted_precisions() -> None:
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


def parsed(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()]


def test_prints_the_pivot_in_percent(grid: GridResult) -> None:
    _, head, *body = parsed(str(grid))
    assert head == ["layers", "/", "dim", "8", "16", "128"]
    assert [row[0] for row in body] == ["1", "3"]
    printed = np.array([[float(cell) for cell in row[1:]] for row in body])
    assert np.abs(printed - grid.pivot().to_numpy() * 100).max() <= 0.005 + 1e-9
    assert len({len(line) for line in str(grid).splitlines()[1:]}) == 1


def written(figure: Any) -> dict[tuple[int, int], str]:
    return {(round(x), round(y)): text.get_text() for text in figure.axes[0].texts for x, y in [text.get_position()]}


def test_a_figure_shows_each_cell_and_only_those(tmp_path: Path) -> None:
    data = rows("A", LADDER, seed=0)
    for row in data:
        row["score"] = float("nan") if row["num_layers"] == 4 else row["score"]
    grid = GridResult(pd.DataFrame(data))
    figure = grid.plot(tmp_path / "ladder.png")
    axes, bar = figure.axes
    cells = {place: text for place, text in written(figure).items() if text}
    assert set(cells) == {(0, 0), (1, 1), (2, 2)}
    assert float(cells[0, 0]) == pytest.approx(grid.score("2L-32d") * 100, abs=0.005 + 1e-9)
    assert cells[1, 1] == "nan"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "64", "128"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["2", "4", "6"]
    assert axes.yaxis_inverted()  # the fewest layers on top, as in the tables
    assert axes.get_title() == "A"
    assert bar.get_ylabel() == "cosine_spearman (%)"
    image: Any = axes.images[0].get_array()
    assert np.ma.getmaskarray(image).sum() == 7  # two of nine are coloured
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")
    assert grid.plot(title="mine").axes[0].get_title() == "mine"


@pytest.mark.parametrize(
    ("model", "title"),
    [
        *[("", "A"), ("unnamed/model", "A"), ("local/model", "model: A"), ("local/aligned", "aligned: A")],
        ("org/all-MiniLM-L6-v2", "all-MiniLM-L6-v2: A"),
    ],
)
def test_title_names_the_model_if_it_is_known(model: str, title: str) -> None:
    sizes = [Size(6, dim) for dim in (8, 16, 32, 64, 128, 256)]
    figure = GridResult(pd.DataFrame(rows("A", sizes, seed=3)), model=model).plot()
    assert figure.axes[0].get_title() == title


@pytest.mark.parametrize("columns", [1, 2, 8])
def test_a_long_title_stays_within_the_figure(columns: int) -> None:
    sizes = [Size(layers, 8 * dim) for layers in (1, 2) for dim in range(1, columns + 1)]
    name = "org/paraphrase-multilingual-mpnet-base-v2-aligned"
    figure = GridResult(pd.DataFrame(rows("NanoClimateFEVERRetrieval", sizes, seed=3)), model=name).plot()
    figure.draw_without_rendering()
    [box] = [text.get_window_extent() for text in figure.findobj(Text) if text.get_text().startswith("paraphrase")]
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.axes[0].get_window_extent().y1 < box.y0 < box.y1 <= figure.bbox.y1 + 1


def test_figure_text_has_contrast() -> None:
    sizes = [Size(n, d) for n in range(1, 13) for d in (8, 16, 32, 64, 128, 256, 512, 768)]
    figure = GridResult(pd.DataFrame(rows("A", sizes, seed=3))).plot()
    (image,) = figure.axes[0].images
    colours = image.to_rgba(np.asarray(image.get_array()))
    inks: set[str] = set()
    for text in figure.axes[0].texts:
        x, y = (round(value) for value in text.get_position())
        channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colours[y, x, :3]]
        luminance = float(np.dot(channels, [0.2126, 0.7152, 0.0722]))
        contrast = 1.05 / (luminance + 0.05) if text.get_color() == "white" else (luminance + 0.05) / 0.05
        # WCAG AA at this font size; the better of two inks gives at least 4.58
        assert contrast >= 4.5
        inks.add(str(text.get_color()))
    assert inks == {"black", "white"}
