"""The example for a cluster finds what `evaluate` finds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_ray_workers_find_what_one_process_finds() -> None:
    pytest.importorskip("ray")
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "examples/ray_grid.py", "--smoke"],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    scores = re.findall(r"^\dL-\d+d  (0\.\d{4})$", done.stdout, re.MULTILINE)
    assert len(scores) == 9
    assert len(set(scores)) > 5  # the sizes differ, so each of them was really compared
    found = re.search(r"Largest difference from evaluate: (\S+)", done.stdout)
    assert found is not None
    assert float(found[1]) < 1e-5  # mteb rounds to five digits
