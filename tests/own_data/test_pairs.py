"""Labelled pairs: metrics compared with scikit-learn and a loop over thresholds; invalid labels are refused."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sklearn.metrics import average_precision_score, f1_score

from st_matryoshka2d import DataWarning, Size, pair_task, truncate
from tests.support import families
from tests.support.sts import quiet

PAIRS: dict[str, Any] = {"sentence1": ["a", "b", "c"], "sentence2": ["x", "y", "z"], "label": [1, 0, 1]}
SIZES = [Size(2, 8), Size(4, 32)]


@pytest.fixture(scope="module")
def rows() -> dict[str, list[Any]]:
    """Pairs with a word in common, or not, and a tenth of the labels turned round."""
    random = np.random.default_rng(3)
    ones = [" ".join(random.choice(families.WORDS, 6)) for _ in range(80)]
    labels = [int(label) for label in random.random(80) < 0.4]
    others = [
        f"{one[: len(one) // 2]} {random.choice(families.WORDS)}" if label else " ".join(random.choice(families.WORDS, 5))
        for one, label in zip(ones, labels, strict=True)
    ]
    return {"sentence1": ones, "sentence2": others, "label": [1 - y if row % 10 == 0 else y for row, y in enumerate(labels)]}


def cosines(model: SentenceTransformer, rows: Any) -> NDArray[np.float64]:
    first, second = (model.encode(list(rows[column])).astype(float) for column in ("sentence1", "sentence2"))
    return np.asarray((first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1))


def best(measure: Callable[[Any, Any], float], scores: NDArray[np.float64], labels: Any) -> float:
    """Try a threshold between any two neighbours."""
    ordered = np.unique(scores)
    return max(measure(labels, scores > middle) for middle in (ordered[1:] + ordered[:-1]) / 2)


def accuracy(labels: Any, guesses: Any) -> float:
    return float(np.mean([label == guess for label, guess in zip(labels, guesses, strict=True)]))


def test_metrics_by_scikit_learn_and_a_loop(tiny: SentenceTransformer, rows: dict[str, list[Any]]) -> None:
    grid = quiet(tiny, pair_task(rows), sizes=SIZES, layers="first")
    for size in SIZES:
        similarities = cosines(truncate(tiny, size, layers="first"), rows)
        precision = average_precision_score(rows["label"], similarities)
        assert 0.5 < precision < 1
        assert grid.score(size, metric="cosine_ap") == pytest.approx(precision, abs=1e-6)
        # mteb's main metric is the best of its functions
        assert grid.score(size) >= grid.score(size, metric="cosine_ap")
        assert grid.score(size, metric="cosine_accuracy") == pytest.approx(
            best(accuracy, similarities, rows["label"]), abs=1e-9
        )
        assert grid.score(size, metric="cosine_f1") == pytest.approx(best(f1_score, similarities, rows["label"]), abs=1e-9)
    assert grid.score(SIZES[0]) != grid.score(SIZES[1])


def test_mteb_and_documents_of_another_size(tiny: SentenceTransformer, rows: dict[str, list[Any]]) -> None:
    task = pair_task({"a": rows["sentence1"], "b": rows["sentence2"], "same": rows["label"]}, **NAMED, name="Named")
    assert isinstance(task, AbsTaskPairClassification)
    result = mteb.evaluate(tiny, task, cache=None, co2_tracker=False, show_progress_bar=False).task_results[0]
    whole = quiet(tiny, task, sizes=["4L-32d"])
    assert result.task_name == "Named"
    assert result.get_score() == pytest.approx(whole.score("4L-32d"), abs=1e-6)
    across = quiet(tiny, task, sizes=["2L-32d"], documents="4L-32d")
    one, two = truncate(tiny, num_layers=2).encode(rows["sentence1"]), tiny.encode(rows["sentence2"])
    similarities = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    expected = average_precision_score(rows["label"], similarities)
    assert across.score("2L-32d", metric="cosine_ap") == pytest.approx(expected, abs=1e-6)


NAMED = {"sentence1": "a", "sentence2": "b", "label": "same"}


def test_two_grids_are_compared_without_a_test(tiny: SentenceTransformer, rows: dict[str, list[Any]]) -> None:
    """As for mteb's own tasks of pairs: average precision has no score of a single pair."""
    task = pair_task(rows)
    grid = quiet(tiny, task, sizes=SIZES)
    compared = grid.compare(quiet(truncate(tiny, num_layers=4, dim=32), task, sizes=SIZES)).to_frame()
    assert set(compared["test"]) == {"none: no items"}
    assert compared["delta"].to_numpy() == pytest.approx([0, 0], abs=1e-6)


HOLDERS: dict[str, Callable[[list[Any]], Any]] = {
    "bool": lambda cells: {**PAIRS, "label": [bool(cell) for cell in cells]},
    "numpy bool": lambda cells: {**PAIRS, "label": [np.bool_(cell) for cell in cells]},
    "float": lambda cells: pd.DataFrame({**PAIRS, "label": [float(cell) for cell in cells]}),
    "decimal": lambda cells: {**PAIRS, "label": [Decimal(cell) for cell in cells]},
    "text": lambda cells: {**PAIRS, "label": [str(cell) for cell in cells]},
    "class": lambda cells: Dataset.from_dict({**PAIRS, "label": cells}, features=CLASSES),
}
CLASSES = Features({"sentence1": Value("string"), "sentence2": Value("string"), "label": ClassLabel(names=["no", "yes"])})


@pytest.mark.parametrize("hold", HOLDERS)
def test_labels_of_any_kind_make_one_task(hold: str) -> None:
    task = pair_task(HOLDERS[hold](PAIRS["label"]))
    assert task.dataset is not None
    assert task.dataset["test"].to_dict() == PAIRS
    assert task.metadata.revision == pair_task(PAIRS).metadata.revision


def test_a_repeated_pair_is_no_further_example() -> None:
    twice = {name: [*cells, cells[0], cells[1]] for name, cells in PAIRS.items()}
    with pytest.warns(DataWarning, match=r"^(Rows that repeat a pair and its label|Pairs that .* labels): 1\.") as told:
        task = pair_task({**twice, "label": [1, 0, 1, 0, 0]})
    assert [warning.filename for warning in told] == [__file__] * 2
    assert task.dataset is not None
    assert task.dataset["test"].to_dict() == {name: cells[1:3] for name, cells in {**PAIRS, "label": [1, 0, 1]}.items()}


def test_real_pairs(minilm: SentenceTransformer, shared: Path) -> None:
    frame = pd.read_parquet(shared / "data/pair_classification/mrpc/test.parquet").iloc[::10]
    similarities = cosines(truncate(minilm, num_layers=1, dim=384), frame)
    grid = quiet(minilm, pair_task(frame), sizes=["1L-384d"])
    assert grid.score("1L-384d", metric="cosine_ap") == pytest.approx(
        average_precision_score(frame["label"], similarities), abs=1e-4
    )
    assert grid.score("1L-384d", metric="cosine_accuracy") == pytest.approx(
        best(accuracy, similarities, frame["label"]), abs=1e-2
    )
