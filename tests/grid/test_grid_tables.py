"""Grids in files, cut and merged: bit-exact round trips, or an error that names the file."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from st_matryoshka2d import CoordinateSpread, GridResult, TruncationResult
from st_matryoshka2d.grid.grid_tables import AXES, ITEM_COLUMNS
from tests.support.quick import quick
from tests.support.results import assert_identical
from tests.support.truncations import SCORES, made_of

ENDINGS = ["parquet", "json"]


ODD = [float("nan"), float("inf"), -0.0, 1 / 3, 5e-324, 1.0, 0.1 + 0.2]


def grid(seed: int = 0, precisions: tuple[str, ...] = ("float32", "int8"), task: str = 'Pärs, "q" \n& 文') -> GridResult:
    """Return a grid with unusual numbers and names; cells with items, with gold scores and another metric, or without."""
    generator = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    for number, (layers, dim, precision) in enumerate(
        (layers, dim, precision) for precision in precisions for layers in (12, 2) for dim in (8, 768)
    ):
        cell = {"task": task, "split": "test", "subset": "déu", "num_layers": layers, "dim": dim, "precision": precision}
        for metric in ("spearman", "pearson"):
            score = ODD[(number + seed) % len(ODD)] if metric == "pearson" else float(generator.normal())
            rows.append({**cell, "metric": metric, "score": score, "is_main": metric == "spearman"})
        if number % 3 < 2:
            gold = np.array([*ODD[1:], np.nan]) if number % 3 else None
            ids = ["q, 1", "ü", "", "[]", "1", "None", "nan"]
            for metric in ("spearman", "pearson") if number % 3 else ("spearman",):
                values = generator.permutation(ODD)
                items.append({**AXES, **cell, "metric": metric, "ids": ids, "values": values, "gold": gold})
    return GridResult(pd.DataFrame(rows), pd.DataFrame(items, columns=ITEM_COLUMNS), "ørg/mödel", None, "4f2a", "12L-768d")


@pytest.fixture(params=["with items", "without items", "one row", "with latency"])
def any_grid(request: pytest.FixtureRequest) -> GridResult:
    whole = grid()
    if request.param == "without items":
        return replace(whole, items=pd.DataFrame(columns=ITEM_COLUMNS))
    if request.param == "one row":
        return GridResult(whole.to_frame().tail(1))
    if request.param == "with latency":
        return whole.with_latency(pd.DataFrame({"num_layers": [2, 12], "milliseconds_per_text": [0.1 + 0.2, 1 / 3]}))
    return whole


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_loaded_is_what_was_saved(any_grid: GridResult, tmp_path: Path, ending: str) -> None:
    path = tmp_path / "lr=1e-5" / f"grid.{ending}"  # some Parquet readers parse this as a column
    any_grid.save(path)
    loaded = GridResult.load(str(path))
    assert_identical(any_grid, loaded)
    assert (loaded.revision, loaded.full_size) == (any_grid.revision, any_grid.full_size)
    assert (any_grid.latency is None) == (loaded.latency is None)
    if any_grid.latency is not None and loaded.latency is not None:
        pd.testing.assert_frame_equal(any_grid.latency, loaded.latency, check_exact=True)
    assert str(any_grid) == str(loaded)
    again = path.with_stem("again")
    loaded.save(again)
    assert_identical(any_grid, GridResult.load(again))
    assert sorted(path.parent.iterdir()) == sorted([path, again])


def test_other_programs_can_read_the_scores(tmp_path: Path) -> None:
    for ending in ENDINGS:
        grid().save(tmp_path / f"grid.{ending}")
    told = json.loads((tmp_path / "grid.json").read_text(encoding="utf-8"))
    tables = [pd.read_parquet(tmp_path / "grid.parquet"), pd.DataFrame(told["rows"])]
    for table in tables:
        assert table["score"].tolist() == pytest.approx(grid().frame["score"].tolist(), nan_ok=True, abs=0)
        assert table["values"].notna().sum() == len(grid().items)
    assert told["model"] == "ørg/mödel"


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_that_is_cut_off_anywhere_is_an_error_that_names_it(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"grid.{ending}"
    grid().save(path)
    whole = path.read_bytes()
    for length in [0, 1, 4, 8, *np.random.default_rng().integers(0, len(whole), 40).tolist(), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=re.escape(str(path))):
            GridResult.load(path)


RESULTS: list[Any] = [
    grid(),
    CoordinateSpread(np.array([0.1 + 0.2, 1 / 3, 0.0]), num_layers=3, num_texts=50),
    made_of(SCORES),
]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_every_kind_of_result_goes_to_a_file_and_back(result: Any, ending: str, tmp_path: Path) -> None:
    kind, path = type(result), tmp_path / "new" / f"result.{ending}"
    with pytest.raises(ValueError, match=r"saved as \.parquet or \.json, got '.*result\.pkl'"):
        result.save(path.with_suffix(".pkl"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError, match=rf"There is no file '.*result\.{ending}'"):
        kind.load(path)
    result.save(path)
    again = kind.load(path)
    pd.testing.assert_frame_equal(again.to_frame(), result.to_frame(), check_exact=True)
    for name in ("model", "document_size", "num_layers", "num_texts"):
        assert getattr(again, name, None) == getattr(result, name, None)
    assert list(path.parent.iterdir()) == [path]
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(ValueError, match=r"not one that \w+\.save wrote"):
        kind.load(tmp_path / "other.parquet")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_grid_without_random_subsets_is_no_truncation(ending: str, tmp_path: Path) -> None:
    for saved, message in (
        (grid(), rf"grid\.{ending} holds no TruncationResult that this version can read: "),
        (made_of(SCORES).grid.at(truncation="first"), "at least two random subsets, got first"),
    ):
        saved.save(tmp_path / f"grid.{ending}")
        with pytest.raises(ValueError, match=message):
            TruncationResult.load(tmp_path / f"grid.{ending}")


@pytest.mark.parametrize("ending", quick([*ENDINGS], "json"))
def test_concurrent_reader_sees_complete_grid(tmp_path: Path, ending: str) -> None:
    path, grids, done = tmp_path / f"grid.{ending}", [grid(0), grid(1)], threading.Event()
    grids[0].save(path)
    contents = {either.to_frame().to_csv() for either in grids}

    def read() -> set[str]:
        seen: set[str] = set()
        while not done.is_set():
            seen.add(GridResult.load(path).to_frame().to_csv())
        return seen

    with ThreadPoolExecutor() as threads:
        seen = threads.submit(read)
        for number in range(20):
            grids[number % 2].save(path)
        done.set()
    assert seen.result() <= contents
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask, "as any new file of this user"


@pytest.mark.parametrize("ending", ENDINGS)
def test_reads_file_without_revision(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"grid.{ending}"
    grid().save(path)
    if ending == "json":
        content = json.loads(path.read_text(encoding="utf-8"))
        del content["revision"]
        path.write_text(json.dumps(content), encoding="utf-8")
    else:
        table = pq.read_table(path)
        ((key, told),) = table.schema.metadata.items()
        others = {name: value for name, value in json.loads(told).items() if name != "revision"}
        pq.write_table(table.replace_schema_metadata({key: json.dumps(others)}), path)
    old = GridResult.load(path)
    assert_identical(old, replace(grid(), revision=""))
    merged = GridResult.merge([replace(old, full_size=""), grid(1, task="B")])
    assert (merged.revision, merged.full_size) == ("4f2a", "12L-768d")


def test_merge_inverts_at() -> None:
    both = GridResult.merge([grid(0), grid(1, task="B")])
    assert_identical(both.at(tasks=grid().tasks[0]), grid(0))
    assert_identical(both.at(tasks=["B"]), grid(1, task="B"))
    parts = [grid().at(precision=precision) for precision in ("float32", "int8")]
    assert [part.precisions for part in parts] == [["float32"], ["int8"]]
    assert_identical(GridResult.merge(parts), grid())
    shallow, deep = grid().at(num_layers=2), grid().at(num_layers=[12])
    assert [str(size) for size in shallow.sizes] == ["2L-8d", "2L-768d"]
    assert GridResult.merge([shallow.at(dims=dim) for dim in (8, 768)] + [deep]).sizes == grid().sizes
    latency = pd.DataFrame({"num_layers": [2, 12], "milliseconds_per_text": [1.0, 2.0]})
    timed = GridResult.merge([parts[0].with_latency(latency), parts[1]])
    assert timed.latency is not None
    assert timed.at(precision="int8").latency is not None
