"""`st-matryoshka2d rotate`: the library's rotation, of the texts in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, rotate
from tests import families
from tests.cli_support import PAIRS, answer, run

TEXTS = [*PAIRS["sentence1"], *PAIRS["sentence2"]]
SIZES = ["--sizes", "2L-8d", "--sizes", "3L-16d"]


@pytest.mark.parametrize(
    "texts",
    [
        ["pairs.csv", "--columns", "sentence1", "--columns", "sentence2"],
        ["pairs.parquet", "--columns", "sentence1", "--columns", "sentence2"],
        ["lines.txt"],
        ["texts.csv"],
    ],
    ids=lambda words: words[0],
)
def test_rotate_is_that_of_the_library(texts: list[str], tiny_folder: Path, files: Path) -> None:
    """Empty texts and second ones are no texts, whatever the file is."""
    (files / "lines.txt").write_text("\n".join(["", *TEXTS, " ", TEXTS[0]]), encoding="utf-8")
    pd.DataFrame({"text": ["", *TEXTS, TEXTS[0]]}).to_csv(files / "texts.csv", index=False)
    name, *columns = texts
    out = files / "rotated"
    found = answer(
        "rotate", tiny_folder, "--texts", files / name, *columns, *SIZES, "--out", out, "--device", "cpu", "--batch-size", 3
    )
    model = SentenceTransformer(str(tiny_folder), device="cpu")
    expected = rotate(model, TEXTS, [Size(2, 8), Size(3, 16)], batch_size=3)
    saved = SentenceTransformer(str(out), device="cpu")
    np.testing.assert_allclose(saved.encode(families.TEXTS), expected.encode(families.TEXTS), atol=1e-6)
    assert not np.allclose(saved.encode(families.TEXTS), model.encode(families.TEXTS), atol=1e-2)
    assert found == {"texts": len(TEXTS), "sizes": ["2L-8d", "3L-16d", "4L-32d"], "saved": str(out)}
    assert "Its embeddings were rotated for these sizes:" in (out / "README.md").read_text(encoding="utf-8")


def test_of_more_texts_some_are_drawn_the_same_each_time(tiny_folder: Path, files: Path) -> None:
    embeddings = []
    for out in ("one", "two"):
        given = ["rotate", tiny_folder, "--texts", files / "pairs.csv", "--columns", "sentence1", "--max-texts", 4]
        result = run(*given, "--out", files / out, "--device", "cpu")
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("Rotated, from 4 texts, for\n")
        assert [line.split("  ")[0] for line in result.stdout.splitlines()[4:6]] == ["1, 2, 3", "4"]
        embeddings.append(SentenceTransformer(str(files / out), device="cpu").encode(families.TEXTS))
    np.testing.assert_array_equal(*embeddings)
