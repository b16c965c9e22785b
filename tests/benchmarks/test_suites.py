"""What the suites of the reproduction score."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from reproduction import suites
from reproduction.suites import WHOLE, score
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import classification_task, evaluate, pair_task, sizes_ladder, truncate
from tests.support import families

PAIRS, STS = {"mrpc": "test", "rte": "dev"}, ["sts12", "stsb"]


@pytest.fixture(autouse=True)
def _few_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, few in {"PAIRS": PAIRS, "STS": STS, "CLASSIFICATION": {"emotion": "train"}, "TWEETS": {}}.items():
        monkeypatch.setattr(suites, name, few)


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
    found = score(tiny, "pairs", WHOLE, tmp_path, sizes_ladder(tiny))
    assert list(found) == ["task", "num_layers", "dim", "score"]
    assert len(found) == len(PAIRS) * 4 * found["dim"].nunique()
    grid = evaluate(tiny, [pair_task(table, name=name) for name, table in tables.items()], show_progress_bar=False)
    for name in PAIRS:
        row = found[(found["task"] == name) & (found["num_layers"] == 2) & (found["dim"] == 16)]
        expected = grid.score("2L-16d", name, metric="cosine_accuracy")
        assert row["score"].item() == pytest.approx(100 * expected, abs=1e-3)
        assert expected != grid.score("2L-16d", name)


def test_a_separate_model_is_scored_at_all_dims_that_it_has(tiny: SentenceTransformer, tmp_path: Path) -> None:
    words = families.WORDS
    table = pd.DataFrame({"sentence1": words, "sentence2": words[::-1], "score": range(len(words))})
    for name in STS:
        (tmp_path / "sts" / name).mkdir(parents=True)
        table.to_parquet(tmp_path / "sts" / name / "test.parquet")
    ladder = sizes_ladder(tiny)
    whole = score(tiny, "sts", WHOLE, tmp_path, ladder).set_index(["task", "num_layers", "dim"])["score"]
    for cut, dims in [
        (truncate(tiny, num_layers=2), [rung.dim for rung in ladder]),
        (truncate(tiny, num_layers=2, dim=8), [8]),
    ]:
        found = score(cut, "sts", "2L-8d", tmp_path, ladder).set_index(["task", "num_layers", "dim"])["score"]
        expected = whole[[size in {(2, dim) for dim in dims} for size in whole.index.droplevel("task")]]
        assert set(found.index) == {(task, 2, rung.dim) for task in STS for rung in ladder if rung.dim <= dims[-1]}
        assert found[expected.index].to_numpy() == pytest.approx(expected.to_numpy(), abs=2e-3)
        on_the_ladder = score(cut, "ladder", "2L-8d", tmp_path, ladder).set_index(["task", "num_layers", "dim"])["score"]
        assert list(on_the_ladder.index) == [(task, 2, 8) for task in STS]
        assert on_the_ladder.to_numpy() == pytest.approx(whole[on_the_ladder.index].to_numpy(), abs=2e-3)


def test_classes_are_scored_by_f1_with_all_layers(tiny: SentenceTransformer, tmp_path: Path) -> None:
    texts = [f"{word} {row}" for row, word in enumerate(families.WORDS * 4)]
    table = pd.DataFrame({"text": texts, "label": [row % 3 // 2 for row in range(len(texts))]})
    (tmp_path / "classification" / "emotion").mkdir(parents=True)
    for part, rows in (("train", table[::2]), ("test", table[1::2])):
        rows.to_parquet(tmp_path / "classification" / "emotion" / f"{part}.parquet")
    ladder = sizes_ladder(tiny)[-2:]
    found = score(tiny, "classification_widths", WHOLE, tmp_path, ladder)
    assert set(found["num_layers"]) == {4}
    assert set(found["dim"]) == {rung.dim for rung in ladder}
    grid = evaluate(
        tiny, [classification_task(table[::2], table[1::2], name="emotion")], sizes=[ladder[-1]], show_progress_bar=False
    )
    row = found[(found["task"] == "emotion") & (found["dim"] == ladder[-1].dim)]
    assert row["score"].item() == pytest.approx(100 * grid.score(ladder[-1], "emotion", metric="f1"), abs=1e-3)
