"""Input files of the commands, an aligned model, and a shell."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from st_matryoshka2d import align
from st_matryoshka2d.cli.app import app
from tests.support.command_line import PAIRS, Shell
from tests.support.grids import random_grid, random_times
from tests.support.pipelines import TEXTS


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all kinds of input files. Read only."""
    folder = tmp_path_factory.mktemp("files")
    PAIRS.to_csv(folder / "pairs.csv", index=False)
    PAIRS.to_parquet(folder / "pairs.parquet")
    PAIRS[:0].to_csv(folder / "header.csv", index=False)
    labelled = PAIRS.drop(columns="score").assign(same=[1, 0, 1, 1, 0])
    labelled.to_json(folder / "labelled.jsonl", orient="records", lines=True)
    (folder / "documents.tsv").write_text("id\ttext\n001\ta cat sat\n02\tNA\n", encoding="utf-8")
    (folder / "queries.csv").write_text("id,text\nNA,a cat\n2,42\n", encoding="utf-8")
    judged = "query_id,corpus_id,score\nNA,001,1\n2,02,2\n"
    (folder / "judged.csv").write_text(judged, encoding="utf-8")
    (folder / "half.csv").write_text(judged.replace("2\n", "0.5\n"), encoding="utf-8")
    (folder / "lines.txt").write_text("\n".join([*TEXTS, "", TEXTS[0]]), encoding="utf-8")
    (folder / "two.txt").write_text("a cat sat\na dog ran\n", encoding="utf-8")
    (folder / "chinese.txt").write_bytes(b"\x81\x8d\xff")
    (folder / "commas.csv").write_text("text\na cat, a dog\nrain, tea\n", encoding="utf-8")
    (folder / "empty.csv").touch()
    (folder / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (folder / "texts" / f"{number:02}.txt").write_text(text, encoding="utf-8")
    random_grid(0).with_latency(random_times(0)).save(folder / "first.parquet")
    random_grid(1).save(folder / "second.json")
    random_grid(1, tasks=["C"]).save(folder / "other.json")
    return folder


@pytest.fixture(scope="session")
def aligned(_tiny_bert: SentenceTransformer) -> SentenceTransformer:
    """An aligned model. Read only."""
    return align(_tiny_bert, TEXTS, rotation="keep")


@pytest.fixture(scope="session")
def aligned_folder(aligned: SentenceTransformer, files: Path) -> Path:
    aligned.save_pretrained(str(files / "aligned"))
    return files / "aligned"


@pytest.fixture
def shell(tiny_folder: Path, aligned_folder: Path, files: Path, tmp_path: Path) -> Shell:
    """Run a line of the shell; the models, `files` and a place for output have short names."""
    places = {"tiny": tiny_folder, "aligned": aligned_folder, "files": files, "out": tmp_path}
    return lambda line: CliRunner().invoke(app, [word.format(**places) for word in line.split()])
