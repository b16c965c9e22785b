"""Input files of the commands."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from st_matryoshka2d import GridResult
from tests.support.command_line import PAIRS
from tests.support.grids import random_grid, random_times


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with all kinds of input files."""
    PAIRS.to_csv(tmp_path / "pairs.csv", index=False)
    PAIRS.to_parquet(tmp_path / "pairs.parquet")
    PAIRS.drop(columns="score").to_csv(tmp_path / "unscored.csv", index=False)
    PAIRS.set_axis(["text a", "text_b", "label"], axis=1).to_csv(tmp_path / "renamed.csv", index=False)
    (tmp_path / "lines.txt").write_text("a cat sat\n\na dog ran\na red house\n", encoding="utf-8")
    (tmp_path / "two.txt").write_text("a cat sat\na dog ran\n", encoding="utf-8")
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf-8")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "documents.csv").write_text("id,text\n1,a cat sat\n2,a dog ran\n", encoding="utf-8")
    (tmp_path / "judgments.csv").write_text("query_id,corpus_id,score\n1,1,1\n2,2,\n", encoding="utf-8")
    PAIRS[:0].to_csv(tmp_path / "header.csv", index=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    random_grid(0).save(tmp_path / "first.parquet")
    random_grid(1).save(tmp_path / "second.json")
    random_grid(1, tasks=["C"]).save(tmp_path / "other.json")
    own = [random_grid(2).to_frame().assign(documents=documents) for documents in ("same size", "4L-64d")]
    GridResult(pd.concat(own)).save(tmp_path / "own.parquet")
    across = [random_grid(2).to_frame().assign(documents=documents) for documents in ("2L-64d", "4L-64d")]
    GridResult(pd.concat(across)).save(tmp_path / "across.parquet")
    random_times(0).to_csv(tmp_path / "times.csv", index=False)
    random_times(0).to_json(tmp_path / "times.json", orient="records")
    random_times(0, layers=[1]).to_csv(tmp_path / "lacking.csv", index=False)
    return tmp_path
