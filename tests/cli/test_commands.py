"""What the commands print and write is what the library prints and writes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import (
    GridResult,
    align,
    asymmetric,
    evaluate,
    fit_queries,
    heal,
    load,
    pair_task,
    retrieval_task,
    sts_task,
    truncate,
)
from tests.support import families
from tests.support.command_line import PAIRS, Shell, told
from tests.support.grids import random_grid, random_times
from tests.support.pipelines import OTHERS, TEXTS, equal

Make = Callable[[SentenceTransformer], SentenceTransformer]

FEW = [*PAIRS["sentence1"], *PAIRS["sentence2"]]
COLUMNS = "--text-column sentence1 --text-column sentence2"
MODELS: list[tuple[str, Make]] = [
    ("truncate {tiny} --size 2L-8d", lambda model: truncate(model, "2L-8d")),
    ("truncate {tiny} --size 2L", lambda model: truncate(model, num_layers=2)),
    ("truncate {tiny} --size 2L-8d --half", lambda model: copy.deepcopy(truncate(model, "2L-8d")).half()),
    ("truncate {tiny} --size 2L-8d --layers 1,4", lambda whole: truncate(whole, "2L-8d", layers=[1, 4])),
    (
        "truncate {tiny} --size 2L-8d --vocabulary {files}/two.txt --max-tokens 12",
        lambda whole: truncate(whole, "2L-8d", vocabulary=["a cat sat", "a dog ran"], max_tokens=12),
    ),
    (
        "align {tiny} --texts {files}/lines.txt --size 2L-8d --layers first --rotation keep",
        lambda model: align(model, TEXTS, ["2L-8d"], layers="first", rotation="keep"),
    ),
    (f"align {{tiny}} --texts {{files}}/pairs.csv {COLUMNS} --prompt the", lambda model: align(model, FEW, prompt="the")),
    (
        "align {tiny} --texts {files}/texts --into {aligned} --batch-size 7",
        lambda model: align(model, TEXTS, into=model, batch_size=7),
    ),
    (
        "heal {tiny} --size 2L-8d --layers 1,4 --texts {files}/lines.txt --prompt the --steps 2 --batch-size 7",
        lambda model: heal(model, TEXTS, "2L-8d", layers=[1, 4], prompt="the", steps=2, batch_size=7),
    ),
    (
        "fit-queries {tiny} --documents {files}/texts --queries {files}/two.txt",
        lambda model: fit_queries(model, TEXTS, queries=["a cat sat", "a dog ran"]),
    ),
]


@pytest.mark.filterwarnings("ignore:40 documents tell little", "ignore:40 different texts or pairs are few")
@pytest.mark.parametrize(("line", "make"), MODELS, ids=[line for line, _ in MODELS])
def test_a_model_is_the_librarys(line: str, make: Make, shell: Shell, tiny_folder: Path) -> None:
    result = shell(f"{line} --device cpu --out {{out}}/new")
    assert result.exit_code == 0, result.output
    out = Path(result.stdout.rpartition("Written: ")[2].strip())
    expected = make(SentenceTransformer(str(tiny_folder), device="cpu"))
    assert equal(load(out, device="cpu"), expected)
    plain = SentenceTransformer(str(out), device="cpu")
    np.testing.assert_allclose(plain.encode(OTHERS), expected.encode(OTHERS), atol=1e-6)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "## Layers and dimensions" in card
    assert ("layers / dim" in result.stdout) == (line.split()[0] not in ("heal", "truncate"))
    assert ("Cosine to the whole model" in result.stdout) == (line.split()[0] == "heal")


def test_asymmetric(aligned: SentenceTransformer, shell: Shell, tmp_path: Path) -> None:
    result = shell("asymmetric {aligned} --query-size 1L-8d --out {out}/both --device cpu")
    assert result.exit_code == 0, result.output
    found = SentenceTransformer(str(tmp_path / "both"), device="cpu")
    expected = asymmetric(aligned, "1L-8d")
    assert np.array_equal(found.encode_query(OTHERS), expected.encode_query(OTHERS))
    assert np.array_equal(found.encode_document(OTHERS), expected.encode_document(OTHERS))


def test_asymmetric_with_an_encoder(shell: Shell, tiny: SentenceTransformer, tmp_path: Path) -> None:
    cut = truncate(tiny, num_layers=2)
    cut.save_pretrained(str(tmp_path / "cut"))
    result = shell("asymmetric {tiny} --query {out}/cut --out {out}/both --device cpu")
    assert result.exit_code == 0, result.output
    found = SentenceTransformer(str(tmp_path / "both"), device="cpu")
    assert "Layers for queries: 2, for documents: 4" in shell("info {out}/both").stdout
    assert np.array_equal(found.encode_query(OTHERS), cut.encode(OTHERS))
    assert np.array_equal(found.encode_document(OTHERS), tiny.encode(OTHERS))


LABELLED = PAIRS.drop(columns="score").assign(same=[1, 0, 1, 1, 0])
SEARCH = ({"001": "a cat sat", "02": "NA"}, {"NA": "a cat", "2": "42"}, {"NA": {"001": 1}, "2": {"02": 2}})
FILES = "{files}/documents.tsv {files}/queries.csv {files}/judged.csv"
GRIDS: list[tuple[str, Callable[[], Any], dict[str, Any]]] = [
    (
        "--pairs {files}/pairs.csv --num-layers 4 --dim 8 --dim 32 --precision int8 --layers ends",
        lambda: sts_task(PAIRS, name="pairs"),
        {"num_layers": 4, "dims": [8, 32], "precisions": "int8", "layers": "ends"},
    ),
    (
        "--labelled-pairs {files}/labelled.jsonl --value-column same --size 1L-8d --size 4L-32d",
        lambda: pair_task(LABELLED, label="same", name="labelled"),
        {"sizes": ["1L-8d", "4L-32d"]},
    ),
    (
        f"--search {FILES} --size 2L-8d --document-size 4L-32d",
        lambda: retrieval_task(*SEARCH, name="search"),
        {"sizes": ["2L-8d"], "documents": "4L-32d"},
    ),
]


@pytest.mark.parametrize(("options", "task", "given"), GRIDS)
def test_grid(
    options: str, task: Callable[[], Any], given: dict[str, Any], shell: Shell, tiny_folder: Path, tmp_path: Path
) -> None:
    result = shell(f"grid {{tiny}} {options} --out {{out}}/new/grid.json --device cpu")
    assert result.exit_code == 0, result.output
    model = SentenceTransformer(str(tiny_folder), device="cpu")
    expected = evaluate(model, task(), show_progress_bar=False, **given)
    found = GridResult.load(tmp_path / "new" / "grid.json")
    pd.testing.assert_frame_equal(found.to_frame(), expected.to_frame())
    assert str(found) in result.stdout


def test_grid_with_times_and_a_plot(shell: Shell, tmp_path: Path) -> None:
    line = "grid {tiny} --pairs {files}/pairs.csv --size 1L-8d --times query --int8 --device cpu"
    result = shell(f"{line} --out {{out}}/g.parquet --plot {{out}}/g.svg")
    assert result.exit_code == 0, result.output
    latency = GridResult.load(tmp_path / "g.parquet").latency
    assert latency is not None
    assert [*latency["num_layers"]] == [1, 4]
    assert latency["milliseconds"].equals(latency["milliseconds_per_text"])  # one text in a call
    assert (latency["megabytes"] < 2e-6 * latency["parameters"]).all()  # in 8 bits, all but vectors
    assert "milliseconds_per_text" in result.stdout
    assert "<svg" in (tmp_path / "g.svg").read_text(encoding="utf-8")


def test_a_warning_is_one_line(shell: Shell, tmp_path: Path) -> None:
    twice = pd.concat([PAIRS, PAIRS[:2].assign(score=[70, 80])])
    twice.to_csv(tmp_path / "twice.csv", index=False)
    result = shell("grid {tiny} --pairs {out}/twice.csv --size 1L-8d --device cpu")
    (warned,) = [line for line in result.stderr.splitlines() if "different scores" in line]
    assert warned.startswith("Warning: Pairs")


CHOICES: list[tuple[str, float | None, dict[str, Any]]] = [
    ("", 0.97, {}),
    ("--min-score 0.5 --max-ms 3 --task A", 0.5, {"max_ms": 3, "task": "A"}),
    ("--best --max-bytes 100 --metric pearson", None, {"max_bytes": 100, "metric": "pearson"}),
    ("--min-score 0.5 --cost bytes", 0.5, {"cost": "bytes"}),
    ("--best --max-megabytes 0.005", None, {"max_megabytes": 0.005}),
    ("--min-score 0.5 --reference {files}/second.json", 0.5, {"reference": random_grid(1)}),
]


@pytest.mark.parametrize(("options", "score", "limits"), CHOICES)
def test_recommend(options: str, score: float, limits: dict[str, Any], shell: Shell) -> None:
    grid = random_grid(0).with_latency(random_times(0))
    result = shell(f"recommend {{files}}/first.parquet {options}")
    assert result.stdout == f"{grid.recommend(score, **limits)}\n", told(result)


def test_an_aligned_model_in_place_of_a_grid(aligned: SentenceTransformer, shell: Shell) -> None:
    grid = GridResult.from_agreement(aligned)
    chosen = shell("recommend {aligned} --min-score 0.1 --max-bytes 100")
    assert chosen.stdout == f"{grid.recommend(0.1, max_bytes=100)}\n"
    assert str(grid) in shell("info {aligned}").stdout


def test_info(shell: Shell, tiny_folder: Path) -> None:
    lines = shell("info {tiny}").stdout.splitlines()
    assert lines[0] == f"{tiny_folder}: bert, 4 layers x 32 dimensions"
    model = SentenceTransformer(str(tiny_folder), device="cpu")
    for line, size in zip(lines[-4:], ["1L-4d", "2L-8d", "3L-16d", "4L-32d"], strict=True):
        count = sum(weight.numel() for weight in truncate(model, size).parameters())
        assert line.split() == [size, f"{count:,}", f"{4 * count / 1e6:.1f}"]


def test_info_lists_the_sizes_that_can_be_cut(shell: Shell, tmp_path: Path) -> None:
    make, _ = families.MIXED["gemma4"]
    families.pipeline(make(), tmp_path / "weights", "mean", None, False).save_pretrained(str(tmp_path / "model"))
    lines = shell(f"info {tmp_path}/model").stdout.splitlines()
    assert [line.split()[0] for line in lines[-6:]] == ["size", "2L-2d", "3L-4d", "4L-8d", "5L-16d", "6L-32d"]


def test_report(shell: Shell, tmp_path: Path) -> None:
    result = shell("report {files}/first.parquet {files}/second.json --out {out}/shell.html")
    assert result.stdout == f"Written: {tmp_path / 'shell.html'}\n"
    first, second = random_grid(0).with_latency(random_times(0)), random_grid(1)
    first.named("first").report(tmp_path / "library.html", beside=[second.named("second")])
    pages = [(tmp_path / f"{name}.html").read_text("utf-8") for name in ("shell", "library")]
    assert pages[0] == pages[1]
