"""What the scoring, timing and tracking of a model refuse, before a data set is loaded or a text is embedded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset
from mteb.mocks.mock_tasks import MockClassificationTask
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import (
    GridEvaluator,
    Size,
    align,
    asymmetric,
    benchmark_latency,
    coordinate_spread,
    evaluate_truncations,
    plot_speedup,
    retrieval_task,
)
from st_matryoshka2d.evaluation.tasks import chosen_tasks
from tests.support import classes
from tests.support.labels import LocalClassification
from tests.support.pipelines import TEXTS
from tests.support.search import Apart
from tests.support.sts import LocalSTS, quiet, read_along

Call = Callable[[dict[str, Any]], object]
GOOD = LocalSTS()
SEARCH = ({"d": "a dog", "e": "a cat"}, {"q": "the cat"}, {"q": ["e"]})
LISTED = retrieval_task(*SEARCH, candidates={"q": ["d", "e"]}, name="Listed")


def scored(tasks: Any = GOOD, model: str = "tiny", **given: Any) -> Call:
    return lambda models: quiet(models[model], tasks, **given)


def truncated(**given: Any) -> Call:
    return lambda models: evaluate_truncations(models["tiny"], **{"tasks": GOOD, "show_progress_bar": False, **given})


def timed(model: str = "tiny", **given: Any) -> Call:
    return lambda models: benchmark_latency(models[model], **given)


def made(**given: Any) -> Call:
    return lambda models: GridEvaluator(**{"tasks": GOOD, **given})


def tracked(**given: Any) -> Call:
    return lambda models: GridEvaluator(GOOD, **given)(models["tiny"])


TIMES = pd.DataFrame({"num_layers": [1, 2], "milliseconds_per_text": [1.0, 2.0], "speedup": [2.0, 1.0], "theory": [2, 1]})
OWN_DATA = "sts_task, pair_task, retrieval_task and classification_task"
REFUSED: list[tuple[Call, type[Exception], str]] = [
    # Models.
    (lambda models: quiet("all-MiniLM-L6-v2", GOOD), TypeError, "Expected a SentenceTransformer, got str"),
    # Tasks.
    (scored([]), ValueError, "tasks is empty"),
    (scored("STSBenchmrak"), ValueError, "no task or benchmark named 'STSBenchmrak'. Similar names: .*STSBenchmark"),
    (scored([GOOD, "qqqqqq"]), ValueError, "mteb has no task or benchmark named 'qqqqqq'. `mteb.get_tasks"),
    (scored(["STS13", LocalSTS]), TypeError, "got <class .*LocalSTS"),
    (scored(3), TypeError, r"got 3 \(int\)"),
    (scored([GOOD, 3]), TypeError, "got 3"),
    (scored(["STS12", "STS13", "STS12"]), ValueError, "STS12 is given more than once"),
    (scored([GOOD, LocalSTS()]), ValueError, "STS13 is given more than once"),
    (scored([GOOD, "STS12VisualSTS"]), ValueError, "STS12VisualSTS is a task of .*image.*only text tasks"),
    (scored(pd.DataFrame({"sentence1": ["a"]})), TypeError, OWN_DATA),
    (scored(Dataset.from_dict({"sentence1": ["a"]})), TypeError, OWN_DATA),
    (lambda models: chosen_tasks(["NanoBEIR", "NanoArguAnaRetrieval"]), ValueError, "NanoArguAnaRetrieval is given more"),
    # Sizes.
    (scored(sizes=[Size(2, 8)], num_layers=2), ValueError, "both were given"),
    (scored(sizes=[Size(2, 8)], dims=[8]), ValueError, "both were given"),
    (scored(sizes=[]), ValueError, "sizes is empty"),
    (scored(num_layers=[]), ValueError, "num_layers is empty"),
    (scored(num_layers=5), ValueError, "num_layers=5: the model has 4 layers"),
    (scored(num_layers=range(5)), ValueError, "num_layers=0: 0 layers mean a token table"),
    (scored(num_layers=True), TypeError, "num_layers must be an integer"),
    (scored(dims=[8, 33]), ValueError, "dims=33: the model has 32 dimensions"),
    (scored(dims=[8, 8]), ValueError, "more than once"),
    (scored(dims=[]), ValueError, "dims is empty"),
    # Documents of another size.
    (scored(documents="5L-32d"), ValueError, "has 5 layers, but the model has 4"),
    (scored(documents="4L"), ValueError, "A size must look like"),
    (scored(documents=[]), ValueError, "at least one"),
    (scored(documents="4L-16d", dims=[8, 32]), ValueError, "1L-32d has no partner: queries can have at most"),
    (scored(documents="4L-16d", sizes=["2L-32d"]), ValueError, "2L-32d has no partner"),
    (scored(documents=["4L-4d", "4L-32d"]), ValueError, "4L-4d has no partner"),
    (
        scored([GOOD, LocalClassification()], documents="4L-32d"),
        ValueError,
        "needs tasks that compare two texts.*is of the type Classification",
    ),
    # Asymmetric models.
    (scored(Apart(), "sides", num_layers=2), ValueError, "num_layers cannot be chosen; give dims alone"),
    (scored(Apart(), "sides", documents="4L-32d"), ValueError, "documents cannot be chosen"),
    (scored(GOOD, "sides"), ValueError, r"queries and documents.*type STS.*route=\"document\""),
    (timed("sides", num_layers=2), ValueError, "leave num_layers and sizes out"),
    # Rerankers.
    (scored(LISTED, "reranker", dims=[8], documents="4L-1d"), ValueError, "leave dims, documents out"),
    (scored(retrieval_task(*SEARCH, name="Mine"), "reranker"), ValueError, "Mine has no candidates, and a reranker cannot"),
    (scored("STSBenchmark", "reranker"), ValueError, "STSBenchmark has none"),
    (scored(LISTED, "three labels"), ValueError, "3 scores for a pair, so it does not rank"),
    (timed("reranker", texts=["one text"]), TypeError, r"pairs\[0\] is 'one text'"),
    # Truncations and the spread of coordinates.
    (truncated(dims=[33]), ValueError, "dim=33: the model has 32"),
    (truncated(dims=32), ValueError, "below the full 32"),
    (truncated(num_layers=5), ValueError, "num_layers=5"),
    (truncated(num_layers=[2]), TypeError, "num_layers"),
    (truncated(seeds=1), ValueError, r"seeds: .*\[0\]"),
    (truncated(seeds=[3, 4, 3]), ValueError, r"seeds: .*\[3, 4, 3\]"),
    (truncated(seeds=0), ValueError, "seeds .* got 0"),
    (truncated(seeds=[1, -1]), ValueError, "seed .* got -1"),
    (truncated(seeds=[1, True]), TypeError, "seed .* got True"),
    (truncated(windows=[32]), ValueError, "windows: .*32.*32"),
    (truncated(windows=[4, 4]), ValueError, r"windows: .*\[4, 4\]"),
    (truncated(windows=[1.0]), TypeError, "start .* got 1.0"),
    (truncated(pca_texts=TEXTS[:8] * 5), ValueError, "at least 33 different texts, got 8"),
    (truncated(tasks=[]), ValueError, "tasks is empty"),
    (truncated(batch_size=0), ValueError, "batch_size .* got 0"),
    (lambda models: coordinate_spread(models["tiny"], ["a text"]), ValueError, "at least two texts, got 1"),
    (truncated(pca_texts="a text"), TypeError, "one string"),
    (lambda models: coordinate_spread(models["tiny"], "a text"), TypeError, "got one string"),
    # Latency.
    (timed(num_layers=5), ValueError, "num_layers=5: the model has 4 layers"),
    (timed(num_layers=[2, 2]), ValueError, "more than once"),
    (timed(num_layers=[]), ValueError, "num_layers is empty"),
    (timed(num_layers=True), TypeError, "num_layers must be an integer"),
    (timed(num_layers=2, sizes=["2L-8d"]), ValueError, "num_layers or sizes, not both"),
    (timed(sizes=["5L-8d"]), ValueError, "has 5 layers, but the model has 4"),
    (timed(sizes=["2L-8"]), ValueError, "look like '6L-128d'"),
    (timed(batch_size=0), ValueError, "batch_size must be 1 or more, got 0"),
    (timed(batch_size=True), TypeError, "batch_size must be an integer"),
    (timed(rounds=0), ValueError, "rounds must be 1 or more, got 0"),
    (timed(rounds=2.5), TypeError, "rounds must be an integer"),
    (lambda models: plot_speedup(TIMES.drop(columns="speedup")), ValueError, "got 2 rows"),
    (lambda models: plot_speedup(TIMES.head(0)), ValueError, "got 0 rows"),
    # The evaluator of a training, when it is made and when it sees the model.
    (made(tasks=[]), ValueError, "tasks is empty"),
    (made(tasks="STSBenchmrak"), ValueError, "Similar names: .*STSBenchmark"),
    (made(tasks=[GOOD, LocalSTS()]), ValueError, "STS13 is given more than once"),
    (made(tasks=MockClassificationTask, sizes=["2L-8d"]), TypeError, "got <class"),
    (made(sizes=[]), ValueError, "sizes is empty"),
    (made(sizes=["2L-8"]), ValueError, "look like '6L-128d'"),
    (made(sizes=["2L-8d", Size(2, 8)]), ValueError, "2L-8d is given more than once"),
    (made(sizes=["2L-8d"], primary_size="4L-8d"), ValueError, "primary_size: 4L-8d is not among the sizes 2L-8d"),
    (made(primary_size="small"), ValueError, "look like '6L-128d'"),
    (made(batch_size=0), ValueError, "batch_size must be 1 or more"),
    (tracked(sizes=["2L-8d", "5L-8d"]), ValueError, "5L-8d has 5 layers, but the model has 4"),
    (tracked(sizes=["4L-33d"]), ValueError, "4L-33d has 33 dimensions, but the model has 32"),
    (tracked(primary_size="4L-31d"), ValueError, "4L-31d is not among the sizes 1L-4d, 2L-8d, 3L-16d, 4L-32d"),
]
# After a look at the structure of the model, which runs it on a few tokens.
LATER: list[tuple[Call, type[Exception], str]] = [
    (scored(cache=3), TypeError, r"cache must be a folder or an mteb ResultCache, got 3 \(int\)"),
    (scored(cache=__file__), ValueError, "cache must be a folder, but '.*test_refusals.py' is a file"),
    (timed(texts="a text"), TypeError, "got one string"),
    (timed(texts=[]), ValueError, "texts is empty"),
    (timed(texts=["a cat", "a \ud83d dog"]), ValueError, r"texts\[1\]: character 2 of the text"),
]


@pytest.fixture(scope="module")
def others(_tiny_bert: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rerankers")
    return {
        "sides": asymmetric(align(copy.deepcopy(_tiny_bert), TEXTS, steps=0), 2),
        "reranker": classes.reranker(folder / "one"),
        "three labels": classes.reranker(folder / "three", num_labels=3),
    }


@pytest.mark.parametrize(("call", "error", "words"), [*REFUSED, *LATER])
def test_refused(call: Call, error: type[Exception], words: str, tiny: SentenceTransformer, others: dict[str, Any]) -> None:
    seen = read_along(tiny)
    with pytest.raises(error, match=words):
        call({"tiny": tiny, **others})
    assert GOOD.loads == 0
    assert not seen or (call, error, words) in LATER
