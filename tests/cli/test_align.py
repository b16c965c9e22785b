"""`st-matryoshka2d align` on the texts of a file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, align, load, sizes_ladder, truncate
from st_matryoshka2d.model.declared_agreement import agreement_table, declared_agreement
from tests.support import families, pipelines
from tests.support.command_line import PAIRS, answer, run, told
from tests.support.pipelines import equal, readouts
from tests.support.quick import quick

TEXTS = [*PAIRS["sentence1"], *PAIRS["sentence2"]]
SIZES = ["--sizes", "2L-8d", "--sizes", "3L-16d"]


@pytest.mark.parametrize(
    "texts",
    [["pairs.csv", "--columns", "sentence1", "--columns", "sentence2"], pytest.param(["lines.txt"], marks=pytest.mark.slow)],
    ids=lambda words: words[0],
)
def test_align_matches_library(texts: list[str], tiny_folder: Path, files: Path) -> None:
    """Empty and duplicate texts are ignored in every file format."""
    (files / "lines.txt").write_text("\n".join(["", *TEXTS, " ", TEXTS[0]]), encoding="utf-8")
    name, *columns = texts
    out = files / "aligned"
    found = answer(
        "align", tiny_folder, "--texts", files / name, *columns, *SIZES, "--out", out, "--device", "cpu", "--batch-size", 3
    )
    model = SentenceTransformer(str(tiny_folder), device="cpu")
    expected = align(model, TEXTS, [Size(2, 8), Size(3, 16)], batch_size=3)
    assert equal(load(out, device="cpu"), expected)
    plain = SentenceTransformer(str(out), device="cpu").encode(families.TEXTS)
    before = model.encode(families.TEXTS)
    np.testing.assert_allclose(plain @ plain.T, before @ before.T, rtol=1e-5)
    sizes = ["1L-32d", "2L-8d", "2L-32d", "3L-16d", "3L-32d", "4L-8d", "4L-16d", "4L-32d"]
    agreement = {str(size): value for size, value in declared_agreement(expected.config).items()}
    assert found == {"texts": len(TEXTS), "sizes": sizes, "agreement": agreement, "rotated": False, "saved": str(out)}
    assert "It was aligned for these sizes, without training:" in (out / "README.md").read_text(encoding="utf-8")


def test_shows_what_sizes_keep_once(tiny_folder: Path, files: Path) -> None:
    """The table of the command stands for the text that the library prints."""
    (files / "many.txt").write_text("\n".join(pipelines.TEXTS), encoding="utf-8")
    out = files / "aligned"
    result = run("align", tiny_folder, "--texts", files / "many.txt", "--out", out, "--device", "cpu")
    measured = declared_agreement(SentenceTransformer(str(out), device="cpu").config)
    assert set(sizes_ladder(load(out, device="cpu"))) <= set(measured)
    head, rows = agreement_table(measured)
    shown = [line.split() for line in result.output.splitlines()]
    assert [shown.count(" ".join(row).split()) for row in (head, *rows)] == [1] * (1 + len(rows))
    assert "Agreement with the whole model, on texts left out of the fit (matryoshka_agreement)" in result.stdout


KEPT: list[tuple[list[str], str]] = [
    ([], "layers 1, 2, 4 of 4"),
    (["--layers", "ends"], "layers 1, 2, 4 of 4"),
    (["--layers", "first"], "the first 3 of 4 layers"),
]


@pytest.mark.parametrize(("layers", "kept"), quick(KEPT, KEPT[0], KEPT[2]))
def test_layers_option(layers: list[str], kept: str, tiny_folder: Path, files: Path) -> None:
    out, cut = files / "aligned", files / "cut"
    answer(
        *("align", tiny_folder, "--texts", files / "pairs.csv", "--columns", "sentence1", *layers),
        *("--out", out, "--device", "cpu"),
    )
    answer("truncate", out, "--size", "3L-16d", "--out", cut, "--device", "cpu")
    assert f"{kept} and the first 16 of 32 dimensions" in (cut / "README.md").read_text(encoding="utf-8")
    plain = SentenceTransformer(str(cut), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(plain, truncate(load(out, device="cpu"), 3, 16).encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize("rotation", quick(["keep", "similarity", "search"], "keep", "search"))
def test_rotation_option(rotation: Literal["keep", "similarity", "search"], tiny_folder: Path, files: Path) -> None:
    """For these texts, rotations are better."""
    texts = [" ".join(random.Random(n).choices(families.WORDS, k=2 + n % 7)) for n in range(400)]
    (files / "many.txt").write_text("\n".join(texts), encoding="utf-8")
    out = files / "aligned"
    given = ["--texts", files / "many.txt", "--rotation", rotation, "--device", "cpu"]
    assert answer("align", tiny_folder, *given, "--out", out)["rotated"] is (rotation != "keep")
    assert answer("info", out)["rotated"] is (rotation != "keep")
    assert "an index of it stays valid" in run("align", out, *given, "--out", files / "again").stdout  # as it was aligned
    aligned = load(out, device="cpu")
    assert equal(aligned, align(SentenceTransformer(str(tiny_folder), device="cpu"), texts, rotation=rotation))
    assert torch.equal(readouts(aligned)[0].linear.weight, torch.eye(32)) == (rotation == "keep")


PROMPTED = [("--prompt-name", "query", "the old "), ("--prompt", "a new ", "a new ")]


@pytest.mark.parametrize(("option", "value", "prompt"), quick(PROMPTED, PROMPTED[0]))
def test_prompt_options(option: str, value: str, prompt: str, tiny_folder: Path, files: Path) -> None:
    model = SentenceTransformer(str(tiny_folder), device="cpu", prompts={"query": "the old ", "document": ""})
    model.save_pretrained(str(files / "prompted"))
    given = ["align", files / "prompted", "--texts", files / "pairs.csv", "--columns", "sentence1", "--device", "cpu"]
    answer(*given, option, value, "--out", files / "aligned")
    assert equal(load(files / "aligned", device="cpu"), align(model, PAIRS["sentence1"], prompt=prompt))
    refused = run(*given, "--prompt-name", "passage", "--out", files / "no")
    assert refused.exit_code == 1
    assert "no prompt 'passage', only ['query', 'document']" in told(refused)
    assert not (files / "no").exists()


def test_samples_texts_reproducibly(tiny_folder: Path, files: Path) -> None:
    made = []
    for out in ("one", "two"):
        given = ["align", tiny_folder, "--texts", files / "pairs.csv", "--columns", "sentence1", "--max-texts", 4]
        result = run(*given, "--out", files / out, "--device", "cpu")
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("Aligned with 4 texts for these sizes:\n")
        made.append(load(files / out, device="cpu"))
    assert equal(*made)


@pytest.mark.slow
def test_the_other_commands_use_the_readouts(tiny_folder: Path, files: Path) -> None:
    out = files / "aligned"
    answer("align", tiny_folder, "--texts", files / "lines.txt", "--out", out, "--device", "cpu")
    aligned = load(out, device="cpu")
    answer("truncate", out, "--size", "2L-8d", "--out", files / "cut")
    cut = SentenceTransformer(str(files / "cut"), device="cpu")
    assert np.array_equal(cut.encode(families.TEXTS), truncate(aligned, 2, 8).encode(families.TEXTS))
    scored = answer("grid", out, "--pairs", files / "pairs.csv", "--sizes", "2L-8d", "--device", "cpu")
    of_cut = answer("grid", files / "cut", "--pairs", files / "pairs.csv", "--sizes", "2L-8d", "--device", "cpu")
    assert scores(scored) == pytest.approx(scores(of_cut), abs=1e-6)
    again = answer("align", out, "--texts", files / "lines.txt", "--out", files / "again", "--device", "cpu")
    assert equal(load(again["saved"], device="cpu"), align(aligned, ["a cat sat", "a dog ran", "a red house"]))
    (out / "2_Dense" / "readout-2L.safetensors").unlink()
    for words in (
        ["truncate", out, "--size", "2L-8d", "--out", files / "no"],
        ["grid", out, "--pairs", files / "pairs.csv"],
    ):
        refused = run(*words)
        assert refused.exit_code == 1
        assert "readout-2L.safetensors is missing" in " ".join(refused.stderr.replace("│", "").split())


def scores(found: object) -> list[float]:
    """Collect the numbers of a grid at any level of nesting."""
    if isinstance(found, dict):
        return [
            number for key, value in found.items() if key not in ("num_layers", "dim", "sizes") for number in scores(value)
        ]
    if isinstance(found, list):
        return [number for value in found for number in scores(value)]
    return [found] if isinstance(found, float) else []
