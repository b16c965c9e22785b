"""Processes that tests start and wait for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def finished(*command: str | Path, cwd: Path = ROOT, timeout: int = 300, **variables: str) -> str:
    """What a process printed; it has one thread and no GPU, and must end well."""
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **quiet, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout
