"""Two processes share an evaluation: both get the result of a single process, with half of the texts each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors import safe_open
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult
from tests.evaluation.distributed_script import CASES, CHUNK, DOCUMENTS, STOPPED, Embedded, evaluated, grid, stop_at
from tests.support import families
from tests.support.in_processes import in_processes
from tests.support.results import assert_identical
from tests.support.task_types import marks

pytestmark = [*marks, pytest.mark.slow]

Results = list[dict[str, Any]]
# Other batches cause other rounding errors of embeddings, and sometimes move an integer by one.
ROUNDING, ONE_INTEGER = 1e-6, 1e-3
STOP = 3 * CHUNK


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
def ranks(folder: Path, model: SentenceTransformer, embedded: Embedded) -> Results:
    """Return the results of both processes, which also resume what one process has begun."""
    stop_at(model, embedded, STOP, folder / "of one")
    return in_processes(2, evaluated, folder)


def assert_close(shared: GridResult, alone: GridResult) -> None:
    one, other = shared.frame, alone.frame
    pd.testing.assert_frame_equal(one.drop(columns="score"), other.drop(columns="score"))
    tolerance = other["precision"].map(lambda precision: ONE_INTEGER if precision == "int8" else ROUNDING)
    same = (one["score"] - other["score"]).abs() <= tolerance
    assert (same | one["score"].isna() & other["score"].isna()).all()


@pytest.mark.parametrize("name", CASES)
def test_two_processes_match_one_with_half_the_work(
    ranks: Results, model: SentenceTransformer, embedded: Embedded, name: str
) -> None:
    first, second = ranks
    assert_identical(first["grids"][name], second["grids"][name])
    embedded.forget()
    assert_close(first["grids"][name], grid(model, CASES[name]))
    counts = [rank["counts"][name] for rank in ranks]
    assert sum(counts) == embedded.texts
    chunks = DOCUMENTS // CHUNK + 1 if name == "many chunks" else 1
    assert 0 <= counts[0] - counts[1] <= chunks + 7  # the odd one of each chunk, subset and split


def test_failure_stops_both_processes_with_reason(ranks: Results) -> None:
    first, second = (rank["errors"] for rank in ranks)
    failed, stopped = "RuntimeError: Distributed evaluator inference failed", "RuntimeError: Distributed evaluator failed on"
    assert first["first fails"] == "OSError: no such data here"
    assert second["first fails"].startswith(f"{stopped} rank 0:")
    assert first["second fails"].startswith(f"{failed}:\nRank 1:")
    assert second["second fails"].startswith(f"{stopped} rank 0:")
    assert "OSError: no such data here" in second["first fails"]
    assert all("OSError: no such memory here" in errors["second fails"] for errors in (first, second))
    for errors in (first, second):
        for what in ("sizes", "data of the tasks", "weights or settings of the model"):
            assert f"UsageError: The processes share one evaluation, but differ in: {what}" in errors[what]
    for rank in ranks:
        assert_identical(rank["after errors"], ranks[0]["grids"]["sts"])


def test_in_a_trainer_the_first_process_evaluates_by_itself(
    ranks: Results, model: SentenceTransformer, embedded: Embedded
) -> None:
    """sentence-transformers evaluates in the first process only; both receive its results."""
    embedded.forget()
    grid(model, CASES["one chunk"])
    first, second = (rank["in a trainer"] for rank in ranks)
    assert (first["texts"], second["texts"]) == (embedded.texts, 0)
    assert first["score"] == second["score"] == pytest.approx(first["after"], abs=ROUNDING)
    assert first["before"] != first["after"]


def documents_read(cache: Path) -> int:
    """Return the number of documents that had been read when the evaluation was stopped."""
    with safe_open(next(cache.rglob("search-*.safetensors")), framework="pt") as saved:
        return int(saved.metadata()["chunks"]) * CHUNK


def test_any_number_of_processes_resumes(
    ranks: Results, folder: Path, model: SentenceTransformer, embedded: Embedded
) -> None:
    """Pairs, queries and documents on disk are not embedded again; only the first process uses the cache."""
    alone = grid(model, STOPPED)
    resumed, finished = zip(*(rank["resumed"] for rank in ranks), strict=True)
    assert sum(documents for _, documents, _ in resumed) == sum(texts for *_, texts in resumed) == DOCUMENTS - STOP
    assert [texts for *_, texts in finished] == [0, 0]
    for of_rank, *_ in (*resumed, *finished):
        assert_identical(of_rank, resumed[0][0])
    assert_close(resumed[0][0], alone)
    assert documents_read(folder / "of two") == STOP
    embedded.forget()
    assert_close(grid(model, STOPPED, cache=folder / "of two"), alone)
    assert embedded.texts == embedded.documents == DOCUMENTS - STOP
    for cache in ("of one", "of two"):
        left = [path.name for path in (folder / cache).rglob("*") if path.name.startswith((".", "texts-", "search-"))]
        assert left == []
    assert not (folder / "unused").exists()
