"""What grids refuse: cells, files, latencies, other grids and limits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, TruncationResult
from st_matryoshka2d.grid.costs import vector_bytes
from st_matryoshka2d.grid.truncation_result import truncation_dims
from tests.support.grids import curve, pairs_grid, random_grid, random_times, with_scores
from tests.support.truncations import SCORES, made_of

Call = Callable[[], object]


def changed(change: Callable[[GridResult], GridResult]) -> Call:
    """Compare a grid of pairs with a changed copy."""
    grid = pairs_grid({"2L-32d": 0.5, "4L-64d": 0.3}, 40, tasks="AB")
    return lambda: grid.compare(change(grid))


def items(**given: Any) -> Call:
    def change(grid: GridResult) -> GridResult:
        cells = [cell | given for cell in grid.items.to_dict("records")]
        return GridResult(grid.frame, pd.DataFrame(cells), grid.model)

    return changed(change)


def frame(change: Callable[[pd.DataFrame], Any]) -> Call:
    return changed(lambda grid: GridResult(change(grid.frame), grid.items))


def timed(change: Callable[[pd.DataFrame], Any]) -> Call:
    return lambda: random_grid(0).with_latency(change(random_times(0)))


def partly_timed() -> None:
    shallow = random_grid(0, layers=(1, 2)).with_latency(random_times(0, layers=(1, 2)))
    GridResult.merge([shallow, random_grid(0, layers=(4,))])


def across(number: int = 2) -> GridResult:
    """Return a grid with documents at a size of their own, whose first depths are timed."""
    grid = GridResult(random_grid(0, layers=(1, 2, 4)[:number]).to_frame().assign(documents="4L-64d"))
    return grid.with_latency(random_times(0, (1, 2, 4)[:number]))


def truncations(*names: str) -> Call:
    return lambda: made_of({key: value for key, value in SCORES.items() if key[0] in names})


def two_depths() -> None:
    table = made_of(SCORES).grid.frame
    TruncationResult(GridResult(pd.concat([table.assign(num_layers=2), table])))


PLAIN, UNTIMED = random_grid(0), GridResult(curve().to_frame())
NAMED = GridResult(PLAIN.frame, model="a/b", revision="1")
LADDER = UNTIMED.to_frame().query("num_layers < 4 or dim < 64")
REFUSED: list[tuple[Call, type[Exception], str]] = [
    # Cells.
    (lambda: PLAIN.pivot("C"), ValueError, "'C'.* A, B"),
    (lambda: PLAIN.pivot(metric="ndcg"), ValueError, "'ndcg'.* spearman"),
    (lambda: PLAIN.score("3L-8d"), ValueError, "3L-8d.* 1L-8d"),
    (lambda: PLAIN.score("1L-8d", "C"), ValueError, "'C'"),
    (lambda: GridResult(PLAIN.to_frame().drop(columns="split")), ValueError, "columns"),
    (lambda: GridResult(PLAIN.to_frame().head(0)), ValueError, "one score"),
    (lambda: GridResult(pd.concat([PLAIN.frame, PLAIN.frame.tail(1)])), ValueError, "repeated"),
    (lambda: PLAIN.at(precision="int4"), ValueError, "'int4'.* float32"),
    (lambda: PLAIN.at(truncation="random-0"), ValueError, "'random-0'.* first"),
    (lambda: PLAIN.at(tasks=["C"]), ValueError, "'C'"),
    (lambda: PLAIN.at(num_layers=6), ValueError, "6.* 1, 2, 4"),
    (lambda: PLAIN.at(num_layers=2, dims=[8, 65]), ValueError, "65.* 8, 20, 64"),
    (lambda: PLAIN.at(tasks=[]), ValueError, "one score"),
    (lambda: across().at(documents="2L-32d"), ValueError, "There is no documents '2L-32d'"),
    (lambda: PLAIN.named(""), ValueError, "name"),
    (lambda: vector_bytes(8, "int3"), ValueError, "int3.* float32"),
    *(
        (lambda view=view: view(random_grid(0, precisions=("int8", "binary"))), ValueError, "int8, binary")
        for view in (GridResult.pivot, GridResult.by_task, GridResult.plot, lambda grid: grid.score("4L-64d"))
    ),
    # Merging.
    (lambda: GridResult.merge([]), ValueError, "no grid"),
    (lambda: GridResult.merge([NAMED, replace(NAMED, model="x/y")]), ValueError, "a/b, x/y"),
    (lambda: GridResult.merge([PLAIN, PLAIN.at(tasks="A", dims=64)]), ValueError, "^A .* 1L-64d"),
    (
        lambda: GridResult.merge([NAMED.at(tasks="A"), replace(NAMED.at(tasks="B"), revision="2")]),
        ValueError,
        "a/b with different weights",
    ),
    # Latencies.
    (timed(lambda times: 3.0), TypeError, "float"),
    (timed(lambda times: times.drop(columns="milliseconds_per_text")), ValueError, "milliseconds_per_text"),
    (timed(lambda times: times[times["num_layers"] != 2]), ValueError, "2.* 1, 4"),
    (timed(lambda times: pd.concat([times, times.head(1)])), ValueError, "more than once"),
    *((timed(lambda t, ms=ms: t.assign(milliseconds_per_text=ms)), ValueError, "above 0") for ms in (0.0, np.nan)),
    (partly_timed, ValueError, "4"),
    # Comparing.
    (changed(lambda grid: grid.at(tasks="A")), ValueError, "task B"),
    (frame(lambda rows: rows.assign(split="dev")), ValueError, "split dev"),
    (frame(lambda rows: rows.assign(metric="m")), ValueError, "cosine_spearman"),
    (frame(lambda rows: rows.assign(num_layers=rows.num_layers + 9)), ValueError, "11L-32d"),
    (items(ids=[*(f"pair {number}" for number in range(1, 40)), "new"]), ValueError, "2L-32d.*'new'"),
    (items(ids=["twice"] * 40), ValueError, "items"),
    (items(ids=[f"pair {number}" for number in (*range(1, 40), 0, 1)]), ValueError, "repeated"),
    (items(gold=np.zeros(40)), ValueError, "gold"),
    (items(gold=None), ValueError, "gold"),
    (lambda: PLAIN.compare(PLAIN, test="z"), ValueError, "'z'"),  # type: ignore[arg-type]
    (lambda: PLAIN.compare(PLAIN, correction="bonferroni"), ValueError, "holm"),  # type: ignore[arg-type]
    (lambda: PLAIN.compare(PLAIN, alpha=5), ValueError, "5"),
    (lambda: PLAIN.compare(PLAIN.frame), TypeError, "DataFrame"),  # type: ignore[arg-type]
    (lambda: PLAIN.compare(PLAIN).pivot("C"), ValueError, "'C'"),
    # Choosing.
    *((lambda value=v: curve().recommend(value), ValueError, "min_score") for v in (97, 1.5, -0.1, np.nan)),
    (lambda: curve().recommend("0.9"), TypeError, "min_score"),  # type: ignore[arg-type]
    (lambda: curve().recommend(max_ms=0), ValueError, "max_ms"),
    (lambda: curve().recommend(max_bytes=np.inf), ValueError, "None"),
    (lambda: curve().recommend(max_bytes=True), TypeError, "max_bytes"),
    (lambda: PLAIN.recommend(max_megabytes=60), ValueError, "the bytes of files.*benchmark_latency"),
    (lambda: curve().recommend(None), ValueError, "limit"),
    (lambda: curve().recommend(task="C"), ValueError, "'C'"),
    (lambda: with_scores(curve(), lambda rows: rows["score"] - 0.9).recommend(), ValueError, "4L-64d.*-0.1"),
    (lambda: with_scores(curve(), lambda rows: np.nan).recommend(), ValueError, "4L-64d.*NaN"),
    (lambda: curve().recommend(reference=0.8), TypeError, "float"),  # type: ignore[arg-type]
    (lambda: curve().recommend(reference=PLAIN), ValueError, "A, B"),
    (lambda: curve().recommend(reference=GridResult(LADDER)), ValueError, "4L-64d"),
    (lambda: GridResult(LADDER).recommend(), ValueError, "4L-64d"),
    (lambda: UNTIMED.recommend(max_ms=1), ValueError, "benchmark_latency"),
    (lambda: UNTIMED.pareto("parameters"), ValueError, "benchmark_latency"),
    (lambda: UNTIMED.plot_pareto(cost="parameters"), ValueError, "benchmark_latency"),
    (lambda: UNTIMED.pareto("milliseconds"), ValueError, "'milliseconds'"),
    (lambda: UNTIMED.pareto([]), ValueError, "cost"),
    (lambda: with_scores(UNTIMED, lambda rows: np.nan).plot_pareto(), ValueError, "nothing"),
    (lambda: UNTIMED.recommend(queries_per_document=10), ValueError, "queries_per_document"),
    (lambda: across().recommend(queries_per_document=-1), ValueError, "queries_per_document"),
    (lambda: across().recommend(queries_per_document="many"), TypeError, "queries_per_document"),  # type: ignore[arg-type]
    (lambda: across().recommend(queries_per_document=10), ValueError, "4 layers"),
    # Metrics, agreement and truncations.
    *(
        (lambda use=use: use(PLAIN), ValueError, "'mrr'.* spearman")
        for use in (
            lambda grid: grid.compare(grid, metric="mrr"),
            lambda grid: grid.recommend(metric="mrr"),
            lambda grid: grid.plot(metric="mrr"),
            lambda grid: grid.pareto(metric="mrr"),
            lambda grid: grid.score("4L-64d", metric="mrr"),
        )
    ),
    (lambda: GridResult.from_agreement("a model"), TypeError, "str"),  # type: ignore[arg-type]
    (truncations("first", "random-0"), ValueError, "random-0"),
    (truncations("random-0", "random-1", "random-2"), ValueError, "prefixes"),
    (two_depths, ValueError, r"\[2, 3\]"),
    (lambda: truncation_dims(0), ValueError, "full_dim must be 1 or more, got 0"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_refused(call: Call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_a_model_that_was_not_aligned_has_no_agreement(tiny: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match="align"):
        GridResult.from_agreement(tiny)


def written(content: object) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "a.json").write_text(content if isinstance(content, str) else json.dumps(content))
        return folder / "a.json"

    return make


def saved(row: dict[str, Any] | None = None, **entries: Any) -> Callable[[Path], Path]:
    """Save a grid and change its first row, which alone remains, or entries of the file."""

    def make(folder: Path) -> Path:
        PLAIN.save(folder / "b.json")
        content = json.loads((folder / "b.json").read_text(encoding="utf-8"))
        rows = [content["rows"][0] | row] if row else content["rows"]
        return written(content | {"rows": rows} | entries)(folder)

    return make


def folder_named(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).mkdir()
        return folder / name

    return make


def without_items(folder: Path) -> Path:
    PLAIN.save(folder / "a.parquet")
    pq.write_table(pq.read_table(folder / "a.parquet").drop_columns(["ids"]), folder / "a.parquet")
    return folder / "a.parquet"


@pytest.mark.parametrize(
    "make",
    [
        *map(written, ([1, 2], {"kind": "Other"}, "score,task", "[" * 100_000)),
        *(saved(rows=rows) for rows in (3, [3], [{}], [])),
        saved(later=1),
        saved({"score": "much"}),
        saved({"num_layers": "two"}),
        folder_named("grid.json"),
        folder_named("grid.parquet"),
        without_items,
        lambda folder: folder / "grid.csv",
        lambda folder: folder / "grid",
    ],
)
def test_files_without_a_grid(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(ValueError, match=re.escape(path.name)):
        GridResult.load(path)
