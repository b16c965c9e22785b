"""Benchmarks run end to end; the measured values are not checked."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
import start
from _demo import data as demo_data
from datasets import Dataset
from reproduction.methods import BEST, FOR_LADDER, PRETRAINED
from reproduction.report import file_of

from tests import ROOT
from tests.support.launch import finished

pytestmark = pytest.mark.slow

BENCHMARKS = ROOT / "benchmarks"
SETS = ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"]
LADDER = [(1, 16), (2, 32), (3, 64), (4, 128), (5, 256), (6, 384)]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux only")
def test_train_step(tmp_path: Path) -> None:
    texts = tmp_path / "data" / "nli" / "triplets_train.parquet"
    texts.parent.mkdir(parents=True)
    demo_data.triplets(200).to_parquet(str(texts))
    options = ["--model", "tiny", "--device", "cpu", "--losses", "starbucks-cached", "--pairs", "7", "--batch-size", "4"]
    folders = ["--data", tmp_path / "data", "--out", tmp_path / "out"]
    finished(sys.executable, BENCHMARKS / "train_step.py", *options, *folders)
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


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux only")
def test_smae_step(tmp_path: Path) -> None:
    options = ["--model", "tiny", "--pairs", "6", "--batch-size", "2", "--tokens", "16", "--out", str(tmp_path)]
    finished(sys.executable, BENCHMARKS / "smae_step.py", *options)
    result = json.loads((tmp_path / "tiny-cpu.json").read_text(encoding="utf-8"))
    ours, straightforward, mlm = result["Time"]
    assert ours["loss"] == pytest.approx(straightforward["loss"], rel=1e-5)
    assert mlm["loss"] < ours["loss"]
    assert all(row["low"] <= row["times ours"] <= row["high"] for row in result["Time"])
    assert all(0 < row["growth MB"] < row["peak MB"] for row in result["Memory"])


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux only")
def test_grid(tmp_path: Path) -> None:
    for folder in ("sts/stsb", "text"):
        (tmp_path / folder).mkdir(parents=True)
    demo_data.scored_pairs(12).to_parquet(str(tmp_path / "sts" / "stsb" / "test.parquet"))
    texts = [" ".join(row["anchor"] for row in demo_data.triplets(6, seed)) for seed in range(8)]
    Dataset.from_dict({"text": texts}).to_parquet(str(tmp_path / "text" / "books_train.parquet"))
    options = ["--data", tmp_path, "--out", tmp_path / "out", "--rounds", "1", "--documents", "8", "--queries", "2"]
    finished(sys.executable, BENCHMARKS / "grid.py", *map(str, options), "--words", "6")
    ours, layers, pairs = json.loads((tmp_path / "out" / "time.json").read_text(encoding="utf-8"))
    assert max(layers["largest difference"], pairs["largest difference"]) < 1e-4
    assert ours["texts"] < layers["texts"] < pairs["texts"] == 36 * 24
    memory = json.loads((tmp_path / "out" / "memory.json").read_text(encoding="utf-8"))
    assert [row["documents"] for row in memory] == [8]
    assert all(row["peak MB"] > 0 for row in memory)


def test_align_time(tmp_path: Path) -> None:
    (tmp_path / "nli").mkdir()
    demo_data.triplets(40).to_parquet(str(tmp_path / "nli" / "triplets_train.parquet"))
    options = ["--data", tmp_path, "--out", tmp_path / "out", "--texts", "12"]
    finished(sys.executable, BENCHMARKS / "align_time.py", *options)
    rows = json.loads((tmp_path / "out" / "all-MiniLM-L6-v2.json").read_text(encoding="utf-8"))
    assert [row["depths keep"] for row in rows] == [
        "first layers",
        "first and last layers",
        "first and last layers, not refined",
    ]
    assert all(row["align, MB"] >= row["encode, MB"] > 0 for row in rows)


def test_inference(tmp_path: Path) -> None:
    (tmp_path / "sts" / "stsb").mkdir(parents=True)
    demo_data.scored_pairs(12).to_parquet(str(tmp_path / "sts" / "stsb" / "test.parquet"))
    for size in ("1", "2"):
        options = ["--data", tmp_path, "--out", tmp_path / "out", "--models", "all-MiniLM-L6-v2", "--lengths", "short"]
        finished(sys.executable, BENCHMARKS / "inference.py", *options, "--batch-sizes", size, "--rounds", "2")
    rows = json.loads((tmp_path / "out" / "cpu.json").read_text(encoding="utf-8"))
    assert [(row["batch_size"], row["num_layers"]) for row in rows] == [(size, n) for size in (1, 2) for n in range(1, 7)]
    assert all(row["speedup"] == 1 for row in rows if row["num_layers"] == 6)
    assert (tmp_path / "out" / "cpu.md").read_text(encoding="utf-8").count("| short | 2 |") == 2


def test_reproduce(tmp_path: Path) -> None:
    """A second run with more methods trains only the new ones."""
    for name in SETS:
        (tmp_path / "sts" / name).mkdir(parents=True)
        demo_data.scored_pairs(30).to_parquet(str(tmp_path / "sts" / name / "test.parquet"))
    (tmp_path / "nli").mkdir()
    demo_data.triplets(60).to_parquet(str(tmp_path / "nli" / "triplets_train.parquet"))
    report = tmp_path / "report"
    options = ["--data", tmp_path, "--out", tmp_path / "out", "--report", report, "--steps", "2", "--batch-size", "4"]
    written = []
    for methods in (["cut", "separate"], ["cut", "separate", "Starbucks", "2DMSE", PRETRAINED, BEST, *FOR_LADDER]):
        finished(sys.executable, BENCHMARKS / "reproduce.py", *options, "--methods", *methods)
        written.append({path.name: path.stat().st_mtime_ns for path in (report / "scores").iterdir()})
    assert written[0].items() < written[1].items()
    scores = pd.read_csv(report / "scores" / "sts.Starbucks.0.csv")
    assert scores.groupby("task").size().to_dict() == dict.fromkeys(sorted(SETS), 36)
    alone = pd.read_csv(report / "scores" / "sts.separate.0.csv")
    assert set(zip(alone["num_layers"], alone["dim"], strict=True)) >= set(LADDER), "and the dims that a model has too"
    ladder = scores.merge(pd.DataFrame(LADDER, columns=["num_layers", "dim"]))
    tables = (report / "README.md").read_text(encoding="utf-8")
    mean = ladder["score"].mean()
    assert re.search(rf"^\| Starbucks \|.* {mean:.1f} \|$", tables, re.MULTILINE)
    assert "| *Starbucks: paper* | 72.1 |" in tables
    others = [pd.read_csv(file_of(report / "scores", "sts", name, 0)) for name in (PRETRAINED, BEST, *FOR_LADDER)]
    assert all(len(other) == len(scores) and not other["score"].equals(scores["score"]) for other in others)
    assert (report / "Starbucks_against_2DMSE.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux only")
def test_batch_encoding(tmp_path: Path) -> None:
    small = ["--texts", "256", "--rounds", "1", "--corpus", "2000", "--shard-size", "50"]
    finished(sys.executable, BENCHMARKS / "batch_encoding.py", *small, "--out", tmp_path)
    result = json.loads((tmp_path / "cpu.json").read_text(encoding="utf-8"))
    assert [row["texts"] for row in result["Memory"]] == [200, 2000]
    assert result["A killed worker"][-1]["files"] == "the same bytes"
    assert all(row["texts a second"] > 0 for row in result["Speed"])


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux only")
def test_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways that start fast: a table without torch, and an empty program."""
    monkeypatch.setattr(start, "FIRST", {})
    monkeypatch.setattr(start, "IMPORTS", ["pass"])
    monkeypatch.setattr(sys, "argv", ["start.py", "--rounds", "1", "--busy", "1", "--out", str(tmp_path)])
    start.main()
    found = json.loads((tmp_path / "start.json").read_text(encoding="utf-8")).values()
    alone, imports, busy = (runs for runs, *_ in found)
    assert alone.keys() == busy.keys()
    assert imports["`pass`"][2] < alone["numpy and tokenizers, imported"][2] <= alone["table, `TokenTable`"][2]
    assert all(figure > 0 for runs in (alone, busy) for run in runs.values() for figure in run)
