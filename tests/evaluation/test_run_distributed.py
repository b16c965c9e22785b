"""Two processes share an evaluation: both get the result of a single process, with half of the work each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors import safe_open
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult
from tests import ROOT
from tests.evaluation.distributed_script import CASES, CHUNK, DOCUMENTS, SIZES, STOPPED, Embedded, grid
from tests.support import families
from tests.support.task_types import marks

pytestmark = [*marks, pytest.mark.slow]

Results = list[dict[str, Any]]
# Other batches cause other rounding errors of embeddings, and sometimes move an integer by one.
ROUNDING, ONE_INTEGER = 1e-6, 1e-3


def launch(part: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"),
            *("-m", "tests.evaluation.distributed_script", part, str(folder)),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def launched(part: str, folder: Path) -> Results:
    done = launch(part, folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    (folder / f"{part}.log").write_text(done.stderr)
    return [torch.load(folder / f"{part}-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the working folder of the processes, which contains `model`."""
    folder = tmp_path_factory.mktemp("evaluate")
    families.pipeline(families.CONFIGS["bert"](), folder / "built", pooling="mean", dense=None, normalize=False).save(
        str(folder / "model")
    )
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder / "model"), device="cpu")


@pytest.fixture(scope="module")
def embedded(model: SentenceTransformer) -> Embedded:
    return Embedded(model)


@pytest.fixture(scope="module")
def shared(folder: Path) -> Results:
    return launched("share", folder)


@pytest.fixture(scope="module")
def stopped(folder: Path) -> Path:
    """Return the folder of a launch that was killed while it read a corpus."""
    done = launch("stop", folder)
    assert done.returncode == -signal.SIGKILL, done.stdout[-3000:] + done.stderr[-6000:]
    for name in ("resumed", "single"):
        shutil.copytree(folder / "stopped", folder / name)
    return folder / "stopped"


@pytest.fixture(scope="module")
def resumed(folder: Path, stopped: Path) -> Results:
    return launched("resume", folder)


def assert_identical(one: GridResult, other: GridResult) -> None:
    pd.testing.assert_frame_equal(one.frame, other.frame, check_exact=True)
    pd.testing.assert_frame_equal(one.items, other.items, check_exact=True)


def assert_close(found: GridResult, expected: GridResult) -> None:
    one, other = found.frame, expected.frame
    pd.testing.assert_frame_equal(one.drop(columns="score"), other.drop(columns="score"))
    tolerance = other["precision"].map(lambda precision: ONE_INTEGER if precision == "int8" else ROUNDING)
    same = (one["score"] - other["score"]).abs() <= tolerance
    assert (same | one["score"].isna() & other["score"].isna()).all()


@pytest.mark.parametrize("name", CASES)
def test_two_processes_match_one_with_half_the_work(
    shared: Results, model: SentenceTransformer, embedded: Embedded, name: str
) -> None:
    first, second = shared
    assert_identical(first["grids"][name], second["grids"][name])
    embedded.forget()
    assert_close(first["grids"][name], grid(model, CASES[name]))
    counts = [rank["counts"][name] for rank in shared]
    copies = 3 if name == "aggregate" else 0  # a document's copies may be in both halves
    assert embedded.texts <= sum(counts) <= embedded.texts + copies
    chunks = DOCUMENTS // CHUNK + 1 if name == "many chunks" else 1
    assert 0 <= counts[0] - counts[1] <= chunks + 4 + copies  # the odd one of each chunk, subset and split


def test_failure_stops_both_processes_with_reason(shared: Results) -> None:
    first, second = (rank["errors"] for rank in shared)
    other = "OtherProcessError: This process stops because another has failed. Process"
    assert first["first fails"] == "OSError: no such data here"
    assert second["first fails"] == f"{other} 0: OSError: no such data here"
    assert first["second fails"] == f"{other} 1: OSError: no such memory here"
    assert second["second fails"] == "OSError: no such memory here"
    for errors in (first, second):
        assert "UsageError: The processes share one evaluation, but differ in: sizes," in errors["differs"]
        assert "differ in: data of the tasks." in errors["other data"]
        assert "differ in: weights or settings of the model. On CPUs, a Trainer" in errors["other weights"]


def test_processes_continue_after_failure(shared: Results) -> None:
    for rank in shared:
        assert_identical(rank["after errors"], shared[0]["grids"]["sts"])


def test_long_wait_is_logged(shared: Results, folder: Path) -> None:
    said = (folder / "share.log").read_text()
    assert "Process 0 waits for the others: every process of the launch must call `evaluate`." in said
    assert "Process 1 waits" not in said


def test_in_a_trainer_the_first_process_evaluates_by_itself(
    shared: Results, model: SentenceTransformer, embedded: Embedded
) -> None:
    """sentence-transformers evaluates in the first process only; both receive its results."""
    embedded.forget()
    grid(model, CASES["one chunk"])
    first, second = (rank["in a trainer"] for rank in shared)
    assert (first["texts"], second["texts"]) == (embedded.texts, 0)
    assert first["score"] == second["score"] == pytest.approx(first["after"], abs=ROUNDING)
    assert first["before"] != first["after"]


def documents_read(cache: Path) -> int:
    """Return the number of documents that had been read when the launch was killed."""
    with safe_open(next(cache.rglob("search-*.safetensors")), framework="pt") as saved:
        return int(saved.metadata()["chunks"]) * CHUNK


def test_a_killed_launch_leaves_whole_files(stopped: Path) -> None:
    written = [path for path in stopped.rglob("*") if path.is_file() and not path.name.startswith(".")]
    kinds = Counter(path.suffix for path in written)
    assert kinds[".safetensors"] == 2  # the queries and the search
    assert kinds[".parquet"] == len(SIZES) * 2
    for path in written:
        if path.suffix == ".parquet":
            GridResult.load(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as saved:
                assert all(saved.get_tensor(name) is not None for name in saved.keys())  # noqa: SIM118
    assert documents_read(stopped) == 3 * CHUNK


@pytest.fixture(scope="module")
def alone(model: SentenceTransformer) -> GridResult:
    """Return the result of an uninterrupted launch."""
    return grid(model, STOPPED)


@pytest.fixture(scope="module")
def labelled(model: SentenceTransformer, embedded: Embedded) -> int:
    """Count the embedded texts of the task that the killed launch had not started."""
    embedded.forget()
    grid(model, CASES["classification"])
    return embedded.texts


def test_same_number_of_processes_resumes(resumed: Results, stopped: Path, alone: GridResult, labelled: int) -> None:
    """Pairs, queries and documents on disk are not embedded again."""
    first, second = resumed
    assert_identical(first["grids"][0], second["grids"][0])
    assert_close(first["grids"][0], alone)
    counts = [rank["counts"][0] for rank in resumed]
    assert sum(documents for documents, _ in counts) == DOCUMENTS - documents_read(stopped)
    assert sum(texts - documents for documents, texts in counts) == labelled


def test_finished_evaluation_is_read_from_cache(
    resumed: Results, folder: Path, model: SentenceTransformer, embedded: Embedded
) -> None:
    for rank in resumed:
        assert rank["counts"][1] == (0, 0)
        assert_identical(rank["grids"][1], rank["grids"][0])
    embedded.forget()
    assert_identical(grid(model, STOPPED, cache=folder / "resumed"), resumed[0]["grids"][0])
    assert embedded.texts == 0
    left = [path.name for path in (folder / "resumed").rglob("*") if path.name.startswith((".", "texts-", "search-"))]
    assert left == []
    assert not (folder / "unused").exists(), "only the first process writes"


def test_one_process_resumes_a_launch_of_two(
    folder: Path, stopped: Path, model: SentenceTransformer, embedded: Embedded, alone: GridResult, labelled: int
) -> None:
    embedded.forget()
    single = grid(model, STOPPED, cache=folder / "single")
    unread = DOCUMENTS - documents_read(stopped)
    assert (embedded.documents, embedded.texts) == (unread, unread + labelled)
    assert_close(single, alone)
