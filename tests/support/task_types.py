"""Compare a grid with mteb on physically cut models, for tasks of every type; each size gets a new task."""

from __future__ import annotations

import functools
import numbers
import random
from collections.abc import Callable, Iterable
from typing import Any

import mteb
import numpy as np
import pytest
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import CompressionWrapper
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from mteb.types import OutputDType
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, Size, truncate
from tests.support import families

MakeTask = Callable[[], Any]
Key = tuple[str, str, str, str]
Cells = dict[Key, float]  # (task, split, subset, metric): score
EXACT = 1e-4
# mteb fits a classifier or clusters: rounding errors of the embeddings may flip a prediction.
FITTED = 5e-3
FITTED_TYPES = ("Classification", "MultilabelClassification", "Clustering", "Regression")

marks = [
    # scikit-learn, scipy and mteb warn about small data.
    pytest.mark.filterwarnings("ignore:SentenceTransformers that use prompts most often:UserWarning"),
    pytest.mark.filterwarnings("ignore:Estimating quantization parameters:UserWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:Number of distinct clusters"),
    pytest.mark.filterwarnings("ignore::scipy.stats.ConstantInputWarning"),
]


def task_metadata(name: str, kind: str, main_score: str, **overwrites: Any) -> TaskMetadata:
    """Return metadata of a generated task. mteb applies prompts only to names that it knows."""
    fields: dict[str, Any] = {
        "description": "Random sentences.",
        "dataset": {"path": "none", "revision": "none"},
        "eval_splits": ["test"],
        "eval_langs": ["eng-Latn"],
        **overwrites,
    }
    return TaskMetadata(name=name, type=kind, main_score=main_score, **fields)


class Writer:
    """Random sentences about a few topics. A topic prefers some words, so topics overlap but are separable."""

    def __init__(self, seed: int, topics: int = 4) -> None:
        self.random = random.Random(seed)
        self.topics = [self.random.sample(families.WORDS, k=6) for _ in range(topics)]
        self.written: set[str] = set()

    def text(self, topic: int, shortest: int = 4, longest: int = 10) -> str:
        """Return a new sentence."""
        while True:
            length = self.random.randint(shortest, longest)
            pools = self.random.choices([self.topics[topic], families.WORDS], weights=[3, 2], k=length)
            text = " ".join(self.random.choice(pool) for pool in pools)
            if text not in self.written:
                self.written.add(text)
                return text

    def near(self, text: str, changes: int = 2) -> str:
        """Return the sentence with a few words replaced."""
        words = text.split()
        for place in self.random.sample(range(len(words)), k=min(changes, len(words))):
            words[place] = self.random.choice(families.WORDS)
        return " ".join(words)


def random_sizes(model: SentenceTransformer, count: int = 2) -> list[Size]:
    """Return a few random sizes and the full size, not in ascending order."""
    depth, width = len(list(model[0].model.encoder.layer)), model.get_embedding_dimension()  # type: ignore[union-attr]
    assert width is not None
    every = [Size(n, d) for n in range(1, depth + 1) for d in range(4, width + 1)]
    sizes = [*random.sample(every[:-1], k=count - 1), every[-1]]
    random.shuffle(sizes)
    return sizes


class Jittered:
    """An encoder with other rounding errors: relative noise of about 1e-7, equal for copies of a text or not."""

    def __init__(self, encoder: Any, copies_together: bool) -> None:
        self.encoder, self.copies_together = encoder, copies_together
        self.mteb_model_meta = encoder.mteb_model_meta
        self.similarity = encoder.similarity
        self.similarity_pairwise = encoder.similarity_pairwise
        self.rng = np.random.default_rng()

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        rows = np.asarray(self.encoder.encode(*args, **kwargs))
        inverse = np.arange(len(rows))
        if self.copies_together:
            rows, inverse = np.unique(rows, axis=0, return_inverse=True)
        return (rows * (1 + 3e-7 * self.rng.standard_normal(rows.shape))).astype(np.float32)[inverse]


@functools.lru_cache(maxsize=8)
def really_cut(model: SentenceTransformer, size: Size) -> SentenceTransformer:
    """Cut a model. Cached, because verifying a cut takes longer than scoring it on a small task."""
    return truncate(model, num_layers=size.num_layers, dim=size.dim)


def oracle(
    model: SentenceTransformer, task: Any, size: Size, precision: str = "float32", wrap: Callable[[Any], Any] = lambda x: x
) -> Cells:
    """Return mteb's scores of the physically cut model."""
    cut: Any = SentenceTransformerEncoderWrapper(really_cut(model, size))
    if precision != "float32":
        cut = CompressionWrapper(cut, OutputDType.from_str(precision))
    results = mteb.evaluate(wrap(cut), task, cache=None, co2_tracker=False, show_progress_bar=False)
    return {
        (result.task_name, split, scores["hf_subset"], metric): float(score)
        for result in results.task_results
        for split, subsets in result.scores.items()
        for scores in subsets
        for metric, score in scores.items()
        if metric != "main_score" and isinstance(score, numbers.Real)
    }


def found(grid: GridResult, size: Size, precision: str = "float32") -> Cells:
    """Return a grid's scores of one size in the same form; fail on duplicate rows."""
    frame = grid.to_frame()
    rows = frame[(frame["num_layers"] == size.num_layers) & (frame["dim"] == size.dim)]
    if "precision" in frame:
        rows = rows[rows["precision"] == precision]
    keys = list(zip(rows["task"], rows["split"], rows["subset"], rows["metric"], strict=True))
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, rows["score"], strict=True))


def differing(actual: Cells, low: Cells, high: Cells, tolerance: float) -> dict[Key, tuple[float, float, float]]:
    """Return the scores outside their bounds; nan equals nan."""
    return {
        key: (score, low[key], high[key])
        for key, score in actual.items()
        if not low[key] - tolerance * (1 + abs(low[key])) <= score <= high[key] + tolerance * (1 + abs(high[key]))
        and not (np.isnan(score) and np.isnan(low[key]))
    }


def assert_cell_is_mteb(
    grid: GridResult,
    model: SentenceTransformer,
    make_task: MakeTask,
    size: Size,
    precision: str = "float32",
    ties: bool = True,
) -> None:
    """Check that a cell has exactly the metrics and scores of the cut model on a new task.

    If two documents are equally near to a query, mteb's score depends on rounding errors. If scores
    differ and `ties` are possible, the tolerance is the range of mteb's scores for embeddings with
    such rounding errors.
    """
    task = make_task()
    where = f"{task.metadata.name} at {size} {precision}"
    tolerance = FITTED if task.metadata.type in FITTED_TYPES else EXACT
    actual, expected = found(grid, size, precision), oracle(model, task, size, precision)
    assert expected, f"{where}: the oracle has no score"
    assert set(actual) == set(expected), (
        f"{where}: {set(expected) - set(actual)} missing, {set(actual) - set(expected)} added"
    )
    wrong = differing(actual, expected, expected, tolerance)
    if wrong and ties:
        ways = [functools.partial(Jittered, copies_together=together) for together in (True, False) * 4]
        scores = [expected, *(oracle(model, make_task(), size, precision, way) for way in ways)]
        lowest, highest = ({key: pick(one[key] for one in scores) for key in expected} for pick in (min, max))
        # Extend the range by its length on both sides: a few draws do not show all effects of ties.
        low = {key: 2 * lowest[key] - highest[key] for key in expected}
        high = {key: 2 * highest[key] - lowest[key] for key in expected}
        wrong = differing(actual, low, high, tolerance)
        if precision == "binary":  # nAUC divides by a difference that many ties can reduce to zero
            wrong = {key: bounds for key, bounds in wrong.items() if "nauc" not in key[3]}
    assert not wrong, f"{where}: (grid, lowest and highest of mteb) = {wrong}"


def assert_grid_is_mteb(grid: GridResult, model: SentenceTransformer, make_task: MakeTask, sizes: Iterable[Size]) -> None:
    """Check each cell of a grid of one task, and its sizes."""
    sizes = list(sizes)
    assert sorted(grid.sizes, key=str) == sorted(sizes, key=str)
    for size in sizes:
        assert_cell_is_mteb(grid, model, make_task, size)
