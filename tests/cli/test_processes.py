"""The command line as a program: its start, its completion, and real tasks and uploads through a Hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, __version__, truncate
from tests import ROOT
from tests.support.families import TEXTS
from tests.support.launch import module_at

PROGRAM = Path(sys.executable).with_name("st-matryoshka2d")
STSB = "datasets/mteb/stsbenchmark-sts/test.parquet"


def output(command: list[Any], folder: Path = ROOT, **environment: str) -> str:
    """Run a program; return its standard output."""
    run = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("start", [[PROGRAM], [sys.executable, "-m", "st_matryoshka2d"]], ids=["program", "module"])
def test_it_starts(start: list[Any]) -> None:
    assert output([*start, "--version"]) == f"st-matryoshka2d {__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from st_matryoshka2d.cli.app import app; app(['grid', '--help'], standalone_mode=False)"
    loaded = set(output([sys.executable, "-c", f"{code}; print(*sys.modules)"]).splitlines()[-1].split())
    assert "typer" in loaded
    assert not {"torch", "transformers", "sentence_transformers", "mteb", "pandas", "numpy", "matplotlib"} & loaded


def test_the_shell_completes_commands() -> None:
    asked = {"_ST_MATRYOSHKA2D_COMPLETE": "complete_bash", "COMP_WORDS": "st-matryoshka2d tr", "COMP_CWORD": "1"}
    assert output([PROGRAM], **asked).split() == ["truncate"]


@pytest.fixture(scope="module")
def hub(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], Path]]:
    """Serve a Hub with uploads; return environment variables for it, and its folder."""
    root = tmp_path_factory.mktemp("hub")
    builder = module_at(shared / "hub" / "build.py").Builder(shared / "data", root)
    builder.sts()
    builder.model()
    few = pd.read_parquet(root / STSB).head(200)
    few.to_parquet(root / STSB)
    home = str(tmp_path_factory.mktemp("home"))
    with module_at(shared / "hub" / "serve.py").serve(root, writable=True) as url:
        yield {"HF_ENDPOINT": url, "HF_HOME": home, "MTEB_CACHE": home, "HF_TOKEN": "x", "NO_PROXY": "127.0.0.1"}, root


@pytest.mark.slow
def test_a_real_task_from_the_hub(hub: tuple[dict[str, str], Path], minilm: SentenceTransformer, tmp_path: Path) -> None:
    told, root = hub
    command = [PROGRAM, "grid", "sentence-transformers/all-MiniLM-L6-v2", "--tasks", "STSBenchmark", "--device", "cpu"]
    sizes = ["--num-layers", "1", "--dims", "64", "--dims", "384"]
    found = json.loads(output([*command, *sizes, "--out", "grid.json", "--json"], tmp_path, **told))
    pairs = pd.read_parquet(root / STSB)
    cut = truncate(minilm, num_layers=1)
    ones, others = (cut.encode(list(pairs[column])) for column in ("sentence1", "sentence2"))
    for row, dim in zip(found["scores"], (64, 384), strict=True):
        left, right = ones[:, :dim], others[:, :dim]
        cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
        assert (row["task"], row["num_layers"], row["dim"]) == ("STSBenchmark", 1, dim)
        assert row["score"] == pytest.approx(spearmanr(cosines, pairs["score"]).statistic, abs=1e-5)
        assert GridResult.load(tmp_path / "grid.json").score(f"1L-{dim}d") == pytest.approx(row["score"])


@pytest.mark.slow
def test_a_cut_is_uploaded(hub: tuple[dict[str, str], Path], tiny: SentenceTransformer, tmp_path: Path) -> None:
    told, root = hub
    tiny.save_pretrained(str(tmp_path / "tiny"))
    command = [PROGRAM, "truncate", tmp_path / "tiny", "--size", "1L-8d", "--device", "cpu"]
    found = json.loads(output([*command, "--push", "me/small", "--private", "--json"], tmp_path, **told))
    assert "me/small" in found["pushed"]
    uploaded = SentenceTransformer(str(root / "models" / "me" / "small"), device="cpu")
    assert np.array_equal(uploaded.encode(TEXTS), truncate(tiny, 1, 8).encode(TEXTS))
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
