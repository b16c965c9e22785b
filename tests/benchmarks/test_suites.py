"""What the suites of the reproduction score."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from reproduction.suites import PAIRS, WHOLE, score
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import evaluate, pair_task
from tests.support import families


def test_pairs_are_scored_by_accuracy_at_every_size(tiny: SentenceTransformer, tmp_path: Path) -> None:
    words = families.WORDS
    rows = {"sentence1": [f"the {word} sat" for word in words], "sentence2": [f"a {word}" for word in words]}
    tables = {
        name: pd.DataFrame({**rows, "label": [place % (2 + skip) == 0 for place in range(len(words))]})
        for skip, name in enumerate(PAIRS)
    }
    for name, table in tables.items():
        (tmp_path / "pair_classification" / name).mkdir(parents=True)
        table.to_parquet(tmp_path / "pair_classification" / name / f"{PAIRS[name]}.parquet")
    found = score(tiny, "pairs", WHOLE, tmp_path)
    assert list(found) == ["task", "num_layers", "dim", "score"]
    assert len(found) == len(PAIRS) * 4 * found["dim"].nunique()
    grid = evaluate(tiny, [pair_task(table, name=name) for name, table in tables.items()], show_progress_bar=False)
    for name in PAIRS:
        row = found[(found["task"] == name) & (found["num_layers"] == 2) & (found["dim"] == 16)]
        expected = grid.score("2L-16d", name, metric="cosine_accuracy")
        assert row["score"].item() == pytest.approx(100 * expected, abs=1e-3)
        assert expected != grid.score("2L-16d", name)
