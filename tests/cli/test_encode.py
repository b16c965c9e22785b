"""`st-matryoshka2d encode`: embeddings equal the model's own, other columns stay, and a stopped run continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import DataWarning, SizesEncoder, load
from st_matryoshka2d.cli.texts import drawn_texts
from tests.support.command_line import answer, run, told
from tests.support.pipelines import TEXTS

LINES = [f"{text}, {number}" for number, text in enumerate(TEXTS[:11])]


def rows(out: Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(path) for path in sorted(out.glob("*.parquet"))], ignore_index=True)


def vectors(frame: pd.DataFrame, size: str) -> Any:
    return np.stack(list(frame[size]))


def test_embeddings_are_those_of_the_model_and_of_its_cuts(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
    sizes = ["--size", "2L-8d", "--size", "4L-32d"]
    found = answer("encode", tiny_folder, tmp_path / "lines.txt", tmp_path / "out", *sizes, "--device", "cpu")
    assert (found["texts"], found["sizes"], found["written"]) == (11, ["2L-8d", "4L-32d"], [str(tmp_path / "out")])
    frame = rows(tmp_path / "out")
    assert frame["text"].tolist() == LINES
    whole = SentenceTransformer(str(tiny_folder), device="cpu")
    np.testing.assert_allclose(vectors(frame, "4L-32d"), whole.encode(LINES), atol=1e-5)
    cut = load(tiny_folder, "2L-8d", device="cpu")
    np.testing.assert_allclose(vectors(frame, "2L-8d"), cut.encode(LINES), atol=1e-5)


def test_prompt_and_unit_length_at_the_full_size_by_default(tiny_folder: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(tiny_folder), device="cpu", prompts={"query": "the bird flew: "})
    model.save_pretrained(str(tmp_path / "prompted"))
    (tmp_path / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
    given = ["--prompt-name", "query", "--normalize", "--batch-size", 2, "--device", "cpu"]
    answer("encode", tmp_path / "prompted", tmp_path / "lines.txt", tmp_path / "out", *given)
    expected = model.encode(LINES, prompt_name="query", normalize_embeddings=True)
    np.testing.assert_allclose(vectors(rows(tmp_path / "out"), "4L-32d"), expected, atol=1e-5)
    assert np.abs(expected - model.encode(LINES, normalize_embeddings=True)).max() > 1e-3


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_other_columns_stay_and_empty_texts_are_left_out(suffix: str, tiny_folder: Path, tmp_path: Path) -> None:
    table = pd.DataFrame({"id": ["007", "1", "2"], "line": ["a cat sat", "", "NA"]})
    file = tmp_path / f"table{suffix}"
    if suffix == ".csv":
        table.to_csv(file, index=False)
    elif suffix == ".parquet":
        table.to_parquet(file)
    else:
        table.to_json(file, orient="records", lines=True)
    result = run("encode", tiny_folder, file, tmp_path / "out", "--column", "line", "--size", "1L-8d")
    assert result.exit_code == 0, result.output
    assert "1 of 3 rows have an empty cell and are left out: 1" in told(result)
    frame = rows(tmp_path / "out")
    assert frame[["id", "line"]].to_numpy().tolist() == [["007", "a cat sat"], ["2", "NA"]]


def test_a_folder_has_a_text_in_each_file(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in {
        "b.txt": "a dog ran\non the road",
        "a.txt": "a cat sat",
        "empty.txt": " \n",
        "notes.md": "no",
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    result = run("encode", tiny_folder, folder, tmp_path / "out", "--size", "1L-8d", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "1 of 3 rows have an empty cell and are left out: 2" in told(result)
    expected = [["a.txt", "a cat sat"], ["b.txt", "a dog ran\non the road"]]
    assert rows(tmp_path / "out")[["file", "text"]].to_numpy().tolist() == expected
    with pytest.warns(DataWarning, match="1 of 3 rows"):
        assert drawn_texts(folder, None, 10) == [text for _, text in expected]
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="none has no text, or only empty ones"):
        drawn_texts(tmp_path / "none", None, 10)


def test_a_stopped_run_continues(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run stops at its third file of four; the next one embeds the rest alone, and ends with the same bytes."""
    (tmp_path / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
    call = SizesEncoder.__call__
    embedded: list[int] = []

    def counting(self: SizesEncoder, batch: Any) -> Any:
        if len(embedded) == 2 and stopping:
            raise KeyboardInterrupt
        embedded.append(len(batch))
        return call(self, batch)

    monkeypatch.setattr(SizesEncoder, "__call__", counting)
    words = ["encode", tiny_folder, tmp_path / "lines.txt"]
    given = ["--size", "2L-8d", "--shard-size", 3, "--device", "cpu"]
    stopping = True
    assert run(*words, tmp_path / "out", *given).exit_code != 0
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2
    stopping = False
    embedded.clear()
    answer(*words, tmp_path / "out", *given)
    assert embedded == [3, 2]
    answer(*words, tmp_path / "whole", *given)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()
    assert rows(tmp_path / "out")["text"].tolist() == LINES


def test_a_folder_of_another_run_is_refused(tiny_folder: Path, files: Path) -> None:
    words = ["encode", tiny_folder, files / "lines.txt", files / "out", "--size"]
    answer(*words, "2L-8d")
    result = run(*words, "2L-16d", "--json")
    assert result.exit_code == 1
    assert "was written with other sizes" in json.loads(result.stdout)["error"]
