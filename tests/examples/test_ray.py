"""The example for a cluster finds what `evaluate` finds."""

from __future__ import annotations

import re
import sys

import pytest

from tests.support.launch import finished


@pytest.mark.slow
def test_ray_workers_find_what_one_process_finds() -> None:
    pytest.importorskip("ray")
    printed = finished(sys.executable, "examples/ray_grid.py", "--smoke", RAY_USAGE_STATS_ENABLED="0")
    scores = re.findall(r"^\dL-\d+d  (0\.\d{4})$", printed, re.MULTILINE)
    assert len(scores) == 9
    assert len(set(scores)) > 5  # the sizes differ, so each of them was really compared
    found = re.search(r"Largest difference from evaluate: (\S+)", printed)
    assert found is not None
    assert float(found[1]) < 1e-5  # mteb rounds to five digits
