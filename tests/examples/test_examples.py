"""Every example runs end to end with --smoke, offline, and writes the results that its docstring states."""

from __future__ import annotations

import json
import re
import runpy
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, TruncationResult
from tests import ROOT
from tests.support.launch import finished

EXAMPLES = ROOT / "examples"


def loaded(folder: str, layers: int = 6, dim: int = 384) -> SentenceTransformer:
    """Load a checkpoint; check its size and that all its modules are from sentence-transformers."""
    modules = json.loads(Path(folder, "modules.json").read_text(encoding="utf-8"))
    assert {module["type"].split(".")[0] for module in modules} == {"sentence_transformers"}
    model = SentenceTransformer(folder, device="cpu")
    assert model[0].auto_model.config.num_hidden_layers == layers
    assert model.encode("a text").shape == (dim,)
    return model


def trained(folder: str, start: SentenceTransformer) -> SentenceTransformer:
    """Load a checkpoint of all-MiniLM-L6-v2's size; check that it was trained."""
    model = loaded(folder)
    changed(model, start)
    return model


def changed(model: SentenceTransformer, start: SentenceTransformer) -> None:
    """Check that the first and last block have changed."""
    for block in (0, 5):
        now, then = (one[0].auto_model.encoder.layer[block].output.dense.weight for one in (model, start))
        assert not now.cpu().equal(then.cpu()), block


def drawn(*paths: str) -> None:
    for path in paths:
        assert Path(path).read_bytes().startswith(b"\x89PNG"), path


def rows_of(printed: str) -> list[int]:
    """Return the layers in the printed tables."""
    return [int(row) for row in re.findall(r"^(\d+) +[+-]?\d", printed, re.MULTILINE)]


def check_nli(parts: str, printed: str, start: SentenceTransformer) -> None:
    """Check an NLI training; `parts` are the loss's entries in the logs."""
    for part in parts.split():
        assert f"'{part}': " in printed
    assert rows_of(printed) == [1, 2, 3, 4, 5, 6] * 2
    (folder,) = Path("runs").glob("nli-*")
    trained(str(folder), start)
    assert "## Sizes" in (folder / "README.md").read_text(encoding="utf-8")
    drawn(str(folder / "grid.png"))


def check_sts(loss: str, printed: str, start: SentenceTransformer) -> None:
    trained(f"runs/sts-{loss}/model", start)
    drawn(f"runs/sts-{loss}/grid.png")
    assert rows_of(printed) == [1, 2, 3, 4, 5, 6]
    assert "eval_DemoSTS_mean" in printed


def check_retrieval(_: str, printed: str, start: SentenceTransformer) -> None:
    model = trained("runs/retrieval/model", start)
    assert model.similarity_fn_name == "dot"
    assert model[1].pooling_mode == "cls"
    assert abs(float((model.encode("a text") ** 2).sum()) - 1) > 0.1  # not normalised
    assert rows_of(printed) == [1, 2, 3, 4, 5, 6]


def check_mipic(_: str, printed: str, start: SentenceTransformer) -> None:
    trained("runs/mipic/model", start)
    with safe_open("runs/mipic/checkpoints/checkpoint-2/loss.safetensors", "pt") as file:
        assert any("P.16" in name for name in file.keys())  # noqa: SIM118 - not a dict
    assert rows_of(printed) == [6]


def check_smae(_: str, printed: str, start: SentenceTransformer) -> None:
    state = json.loads(Path("runs/smae/pretraining/checkpoint-2/trainer_state.json").read_text(encoding="utf-8"))
    logged = [set(step) for step in state["log_history"] if "loss" in step]
    assert len(logged) == 2
    assert {"1L-16d/encoder", "6L-384d/decoder"} <= logged[0]
    encoder = SentenceTransformer("runs/smae/encoder", device="cpu")
    changed(encoder, start)
    model = trained("runs/smae/starbucks", encoder)
    assert model[1].pooling_mode == "cls"


def check_alignment(_: str, printed: str, start: SentenceTransformer) -> None:
    model = loaded("runs/aligned/model", 6, 384)
    loaded("runs/aligned/half", 3, 384)
    texts = ["a cat sat on the mat", "it rains", "a dog ran"]
    before, after = start.encode(texts), model.encode(texts)
    assert abs(after @ after.T - before @ before.T).max() < 1e-5
    assert abs(after - before).max() > 0.01
    assert re.search(r"aligned minus not aligned", printed)
    aligned, ends, first = (float(share) for share in re.findall(r": 3 layers find (\d+\.\d)%", printed))
    assert aligned >= ends > first
    drawn("runs/aligned/gain.png")


def check_grid(_: str, printed: str, start: SentenceTransformer) -> None:
    grid = GridResult.load("runs/grid/grid.parquet")
    assert grid.tasks == ["DemoSTS", "DemoSearch"]
    assert [str(size) for size in grid.sizes] == ["3L-32d", "3L-384d", "6L-32d", "6L-384d"]
    best = grid.recommend(min_score=0.97, max_bytes=None)  # uses the times in the file
    assert f"Ship {best}" in printed
    loaded("runs/grid/model", best.size.num_layers, best.size.dim)
    drawn(*(f"runs/grid/{name}.png" for name in ("grid", "DemoSTS", "DemoSearch", "difference", "front")))
    assert "the model minus the other" in printed


def check_truncation(_: str, printed: str, start: SentenceTransformer) -> None:
    for name in ("6 layers", "1 layer"):
        result = TruncationResult.load(f"runs/truncation/{name}.parquet")
        assert set(result.verdict()["dim"]) == {192, 48}
        assert "pca" in set(result.summary()["method"])
        assert str(result) in printed
        drawn(f"runs/truncation/{name}.png", f"runs/truncation/{name}-spread.png")


def check_decoder(_: str, printed: str, start: SentenceTransformer) -> None:
    whole = loaded("runs/decoder/model", 4, 64)
    cut = loaded("runs/decoder/cut", 2, 16)
    assert whole[0].auto_model.config.model_type == "qwen3"
    assert cut[1].pooling_mode == "lasttoken"
    ends = (whole[0].auto_model.layers[place] for place in (0, 3))  # which the cut keeps
    for now, then in zip(cut[0].auto_model.layers, ends, strict=True):
        assert now.mlp.up_proj.weight.equal(then.mlp.up_proj.weight)
    assert rows_of(printed) == [1, 2, 3, 4] * 2


def check_quickstart(_: str, printed: str, start: SentenceTransformer) -> None:
    loaded("quickstart/cut-3L-64d", 3, 64)
    drawn("quickstart/grid.png")
    assert rows_of(printed) == [1, 2, 3, 4, 5, 6] * 3
    assert "after minus before" in printed
    assert float(re.findall(r"differ from the cut's by (\S+) at most", printed)[0]) < 1e-5


def check_collection(_: str, printed: str, start: SentenceTransformer) -> None:
    [name] = [path.name.removesuffix("-half") for path in Path("collection").glob("*-half")]
    loaded(f"collection/{name}-every-size")
    loaded(f"collection/{name}-half", 3)
    for size in ("every-size", "half"):
        assert f"hf upload you/{name}-{size} collection/{name}-{size}" in printed
        assert f"you/{name}-{size}" in Path("collection", f"{name}-{size}", "README.md").read_text(encoding="utf-8")
        [scores] = Path("collection/mteb/results", f"you__{name}-{size}").glob("*/Demo*.json")
        assert {"scores", "mteb_version"} <= set(json.loads(scores.read_text(encoding="utf-8")))
        assert (scores.parent / "model_meta.json").is_file()


RUNS: list[tuple[str, Callable[[str, str, SentenceTransformer], None], str]] = [
    ("train_nli.py --loss starbucks", check_nli, "task kl"),
    ("train_nli.py --loss 2dmse", check_nli, "task kl"),
    ("train_nli.py --loss espresso", check_nli, "task compress"),
    ("train_nli.py --loss mipic", check_nli, "mrl sia_attention sia_cka pic"),
    ("train_nli.py --loss distill", check_nli, "task distill"),
    ("train_sts.py --loss cosent", check_sts, "cosent"),
    ("train_sts.py --loss angle", check_sts, "angle"),
    ("train_retrieval.py", check_retrieval, ""),
    ("train_mipic.py", check_mipic, ""),
    ("pretrain_smae.py", check_smae, ""),
    ("align.py", check_alignment, ""),
    ("mteb_grid.py", check_grid, ""),
    ("random_truncation.py", check_truncation, ""),
    ("decoder.py", check_decoder, ""),
    ("quickstart.py", check_quickstart, ""),
    ("collection.py", check_collection, ""),
]


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block network access. Saving a model requests the base model from the Hub, and continues without it."""

    def refuse(*address: Any, **kwargs: Any) -> None:
        raise OSError("the test has no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize(("command", "check", "expected"), RUNS, ids=[command for command, *_ in RUNS])
def test_example(
    command: str,
    check: Callable[[str, str, SentenceTransformer], None],
    expected: str,
    minilm: SentenceTransformer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script, *arguments = command.split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [script, *arguments, "--smoke"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # restored if the example sets it
    with warnings.catch_warnings():
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    check(expected, capsys.readouterr().out, minilm)


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path: Path, minilm: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    printed = finished(*torchrun, EXAMPLES / "train_nli.py", "--smoke", cwd=tmp_path, timeout=500, HF_HUB_OFFLINE="1")
    assert rows_of(printed) == [1, 2, 3, 4, 5, 6] * 2  # only one process prints
    monkeypatch.chdir(tmp_path)
    trained("runs/nli-starbucks", minilm)


def test_scripts_are_short_and_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    scripts = sorted(path for path in EXAMPLES.glob("*.py") if not path.name.startswith("demo_"))
    # tests/examples/test_engines.py
    engines = {"daft_encode.py", "ray_encode.py", "ray_grid.py", "spark_encode.py"}
    engines |= {f"{engine}_search.py" for engine in ("faiss", "lancedb", "milvus", "sqlite_vec")}
    engines |= {"clients_asymmetric.py", "funnel.py", "onnx_export.py", "serve_infinity.py"}
    assert {command.split()[0] for command, _, _ in RUNS} | engines == {path.name for path in scripts}
    for path in scripts:
        assert f"({path.name})" in listed
        assert len(path.read_text(encoding="utf-8").splitlines()) < 80, path.name
