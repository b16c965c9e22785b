"""The pre-training example runs from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer


def test_the_example_leaves_a_backbone_and_a_model(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[1] / "examples" / "pretrain_smae.py"
    done = subprocess.run(
        [sys.executable, str(script), "--smoke"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    state = json.loads((tmp_path / "smae/pretraining/checkpoint-2/trainer_state.json").read_text(encoding="utf-8"))
    logged = [set(step) for step in state["log_history"] if "loss" in step]
    assert len(logged) == 2
    assert {"1L-16d/encoder", "6L-384d/decoder"} <= logged[0]
    assert SentenceTransformer(str(tmp_path / "smae/encoder"), device="cpu").encode("a text").shape == (384,)
    assert SentenceTransformer(str(tmp_path / "smae/starbucks"), device="cpu").encode("a text").shape == (384,)
