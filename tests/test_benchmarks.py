"""Benchmarks run from end to end; what they measure is not judged here."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import demo_data
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "train_step.py"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux only")
def test_train_step(tmp_path: Path) -> None:
    texts = tmp_path / "data" / "nli" / "triplets_train.parquet"
    texts.parent.mkdir(parents=True)
    demo_data.triplets(200).to_parquet(str(texts))
    options = ["--model", "tiny", "--device", "cpu", "--losses", "starbucks-cached", "--pairs", "7", "--batch-size", "4"]
    command = [sys.executable, SCRIPT, *options, "--data", tmp_path / "data", "--out", tmp_path / "out"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    result = json.loads((tmp_path / "out" / "tiny-cpu.json").read_text(encoding="utf-8"))
    assert (
        result["settings"].items() >= {"model": "tiny", "texts": "NLI", "pairs": 7, "batch_size": 4, "bf16": False}.items()
    )

    (time,) = result["time_table"]
    assert (time["loss"], time["peer"], time["target"], time["met"]) == ("starbucks-cached", "mnrl", None, None)
    assert 0 < time["low"] <= time["ratio"] <= time["high"] < math.inf
    assert min(time["ms"], time["peer ms"]) > 0

    (memory,) = result["memory_table"]
    assert (memory["loss"], memory["batch"], memory["peer"]) == ("starbucks-cached", 128, "starbucks")
    assert 0 < memory["growth MB"] < memory["peak MB"]
    assert memory["met"] == (memory["ratio"] <= memory["target"])

    report = (tmp_path / "out" / "tiny-cpu.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in report if line.startswith("| starbucks-cached |")]
    assert [row.count("|") for row in rows] == [len(time) + 1, len(memory) + 1]
    assert str(tmp_path) not in "".join(report), "a report holds no paths"
