"""A repeatedly killed evaluation ends like an uninterrupted one and never embeds cached texts again."""

from __future__ import annotations

import json
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from st_matryoshka2d import GridResult
from tests.evaluation.resume_script import CHUNK, KILLS, KINDS, PRECISIONS, SIZES
from tests.support.launch import finished
from tests.support.results import assert_identical, scores_of_mteb

pytestmark = pytest.mark.slow  # starts processes; test_store.py has in-process tests

KILLED = {signal.SIGKILL, signal.SIGXFSZ}  # SIGXFSZ kills in the middle of a file


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all evaluations; return their folder."""
    folder = tmp_path_factory.mktemp("evaluations")
    finished(sys.executable, "-m", "tests.evaluation.resume_script", folder, timeout=600)
    return folder


def grid(root: Path, kind: str, name: str) -> GridResult:
    found = pickle.loads((root / kind / f"{name}.pickle").read_bytes())
    assert isinstance(found, GridResult)
    return found


def said(root: Path, kind: str) -> tuple[list[dict[str, Any]], str]:
    """Return the record of each run, and the seed for messages."""
    told = json.loads((root / f"{kind}.json").read_text())
    return told["runs"], f"seed {told['seed']}"


@pytest.mark.parametrize("kind", KINDS)
def test_enough_runs_are_killed(root: Path, kind: str) -> None:
    """Otherwise the tests below would prove nothing."""
    runs, seed = said(root, kind)
    texts = json.loads((root / f"{kind}.json").read_text())["texts"]
    first, *_, last, late, after = runs
    assert len(runs) == KILLS + 3
    assert (last["moment"], last["signal"], after["moment"], after["signal"]) == (None, 0, None, 0)
    assert first["signal"] == signal.SIGKILL
    assert 0 < first["held"] < texts
    assert late["signal"] == signal.SIGKILL
    assert late["held"] == texts, "all cells are there"
    # some moments come after the end
    assert sum(run["signal"] in KILLED for run in runs) >= 3, seed
    assert any(run["unfinished"] for run in runs), seed


@pytest.mark.parametrize("name", ["killed", "killed late"])
@pytest.mark.parametrize("kind", KINDS)
def test_killed_evaluation_matches_uninterrupted_one(root: Path, kind: str, name: str) -> None:
    whole = grid(root, kind, "whole")
    assert_identical(whole, grid(root, kind, name))
    assert whole.sizes == SIZES
    assert whole.precisions == PRECISIONS.get(kind, ["float32"])
    assert scores_of_mteb(root / kind / name) == scores_of_mteb(root / kind / "whole")


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_changes_no_number(root: Path, kind: str) -> None:
    """Except the sixth decimal of means over tasks, which mteb's files round."""
    with_cache, without = grid(root, kind, "whole"), grid(root, kind, "plain")
    columns = [column for column in without.frame if column != "score"]
    pd.testing.assert_frame_equal(with_cache.frame[columns], without.frame[columns])
    np.testing.assert_allclose(with_cache.frame["score"], without.frame["score"], atol=1e-6)
    assert len(with_cache.items) == len(without.items)
    assert (len(without.items) > 0) == (kind in ("STS", "retrieval"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_that_is_on_disk_is_embedded_again(root: Path, kind: str) -> None:
    runs, seed = said(root, kind)
    for run in runs:
        assert run["again"] == [], f"{seed}, {run['name']}, killed at {run['moment']}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_loses_one_chunk_at_most(root: Path, kind: str) -> None:
    runs, seed = said(root, kind)
    for run in runs:
        assert run["lost"] <= (CHUNK if run["signal"] else 0), f"{seed}, {run['name']}, killed at {run['moment']}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_is_whole_at_any_moment(root: Path, kind: str) -> None:
    runs, seed = said(root, kind)
    for run in runs:
        assert run["broken"] == [], f"{seed}, {run['name']}, killed at {run['moment']}"


@pytest.mark.parametrize("kind", KINDS)
def test_only_results_remain(root: Path, kind: str) -> None:
    for name in ("killed", "killed late", "whole"):
        names = {path.relative_to(root / kind / name) for path in (root / kind / name).rglob("*") if path.is_file()}
        ours = {name for name in names if name.parts[0] == "st_matryoshka2d"}
        assert {path.suffix for path in ours} == {".parquet", ".json"}
        assert all(path.parent.name == "cells" for path in ours)
        assert {path.parts[0] for path in names - ours} == {"results"}
    for run in said(root, kind)[0]:
        if run["moment"] is None:
            assert run["unfinished"] == run["waiting"] == []
