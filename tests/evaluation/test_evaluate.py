"""Cells of the grid equal mteb's scores of the cut model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from mteb.benchmarks.benchmark import Benchmark
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, Size, TruncatedTransformer, sizes_ladder, truncate
from tests.support import families
from tests.support.quick import quick
from tests.support.sts import ConstantSTS, LocalSTS, OtherSTS, cells, cells_of_mteb, quiet, read_along


def assert_each_cell_is_that_of_the_cut(grid: GridResult, model: SentenceTransformer, task: LocalSTS) -> None:
    for size in {grid.sizes[0], grid.sizes[len(grid.sizes) // 2], grid.sizes[-1]}:
        expected = cells_of_mteb(truncate(model, num_layers=size.num_layers, dim=size.dim), task)
        assert len(expected) == 2 * 2 * 8
        assert cells(grid, size, task.metadata.name) == pytest.approx(expected, abs=1e-6), str(size)


def test_default_sizes_match_mteb_on_cuts(tiny: SentenceTransformer) -> None:
    task = LocalSTS()
    grid = quiet(tiny, task)
    assert grid.sizes == [Size(n, d) for n in (1, 2, 3, 4) for d in (8, 16, 32)]
    assert_each_cell_is_that_of_the_cut(grid, tiny, task)
    assert cells(grid, Size(4, 32), "STS13") == pytest.approx(cells_of_mteb(tiny, task), abs=1e-6)
    main = grid.to_frame().query("is_main")
    assert set(main["metric"]) == {"cosine_spearman"}
    assert len(set(main["score"])) > 0.9 * len(main)  # of few pairs, two cells may rank alike


# mteb expects other prompts
@pytest.mark.filterwarnings("ignore:SentenceTransformers that use prompts:UserWarning")
def test_pooling_that_leaves_the_prompt_out(tiny: SentenceTransformer) -> None:
    tiny.prompts = {"STS": "the old red "}
    with_prompt = quiet(tiny, LocalSTS(), sizes=[Size(2, 8)])
    tiny.set_pooling_include_prompt(False)
    grid = quiet(tiny, LocalSTS(), sizes=[Size(2, 8)])
    assert_each_cell_is_that_of_the_cut(grid, tiny, LocalSTS())
    assert with_prompt.score("2L-8d") != grid.score("2L-8d")


@pytest.mark.parametrize("similarity", quick(["dot", "euclidean"], "dot"))
def test_similarity_is_the_models_own(tiny: SentenceTransformer, similarity: str) -> None:
    tiny.similarity_fn_name = similarity  # type: ignore[assignment]
    found = cells(quiet(tiny, LocalSTS(), sizes=[Size(3, 8)]), Size(3, 8), "STS13")
    cut = truncate(tiny, num_layers=3, dim=8)
    task = LocalSTS()
    task.load_data()
    data = task.dataset["two"]["test"]  # type: ignore[index]
    one, two = (cut.encode(list(data[column])) for column in ("sentence1", "sentence2"))
    similarities = (one * two).sum(1) if similarity == "dot" else -np.linalg.norm(one - two, axis=1)
    expected = np.corrcoef(similarities.argsort().argsort(), np.argsort(np.argsort(data["score"])))[0, 1]
    assert found["test", "two", "spearman"] == pytest.approx(expected, abs=1e-6)
    assert found["test", "two", "spearman"] != found["test", "two", "cosine_spearman"]


@pytest.mark.parametrize("family", quick(["modernbert", "qwen3", "albert"], "modernbert"))
def test_other_families_with_a_head(tmp_path: Path, family: str) -> None:
    model = families.pipeline(families.CONFIGS[family](), tmp_path, pooling="mean", dense=24, normalize=True)
    grid = quiet(model, LocalSTS(), sizes=sizes_ladder(model)[1:])
    assert len(grid.sizes) == 3
    assert_each_cell_is_that_of_the_cut(grid, model, LocalSTS())


def test_the_full_size_of_a_model_that_is_itself_cut(tiny: SentenceTransformer) -> None:
    tiny.truncate_dim = 20
    tiny[0] = TruncatedTransformer.from_transformer(tiny[0], num_layers=3)  # type: ignore[arg-type]
    grid = quiet(tiny, LocalSTS(), num_layers=3)
    assert grid.sizes == [Size(3, 8), Size(3, 16), Size(3, 20)]
    assert cells(grid, Size(3, 20), "STS13") == pytest.approx(cells_of_mteb(tiny, LocalSTS()), abs=1e-6)


def test_several_tasks_and_a_benchmark(tiny: SentenceTransformer) -> None:
    tasks = [LocalSTS(), OtherSTS()]
    grid = quiet(tiny, Benchmark(name="two", tasks=tasks), num_layers=[2, 4], dims=16)
    assert grid.tasks == ["STS13", "STS14"]
    assert grid.sizes == [Size(2, 16), Size(4, 16)]
    results = mteb.evaluate(
        truncate(tiny, num_layers=2, dim=16), tasks, cache=None, co2_tracker=False, show_progress_bar=False
    )
    means = [result.get_score() for result in results.task_results]
    assert [grid.score("2L-16d", name) for name in grid.tasks] == pytest.approx(means, abs=1e-6)
    assert grid.score("2L-16d") == pytest.approx(np.mean(means), abs=1e-6)


@pytest.mark.filterwarnings("ignore::scipy.stats.ConstantInputWarning")
def test_undefined_score_stays_nan(tiny: SentenceTransformer) -> None:
    grid = quiet(tiny, [LocalSTS(), ConstantSTS()], sizes=[Size(2, 8)])
    assert np.isnan(grid.score("2L-8d", "STS16"))
    assert np.isnan(grid.score("2L-8d"))
    assert np.isfinite(grid.score("2L-8d", "STS13"))


GOOD = LocalSTS()


@pytest.mark.parametrize(
    ("tasks", "error", "message"),
    [
        ([], ValueError, "tasks is empty"),
        ("STSBenchmrak", ValueError, "mteb has no task or benchmark named 'STSBenchmrak'. Similar names: .*STSBenchmark"),
        (["qqqqqq"], ValueError, "mteb has no task or benchmark named 'qqqqqq'. `mteb.get_tasks"),
        (["STS13", LocalSTS], TypeError, "got <class .*LocalSTS"),
        (3, TypeError, r"got 3 \(int\)"),
        (["STS12", "STS13", "STS12"], ValueError, "STS12 is given more than once"),
        ("STS12VisualSTS", ValueError, "STS12VisualSTS is a task of .*image.*only text tasks"),
        (pd.DataFrame({"sentence1": ["a"]}), TypeError, "sts_task, pair_task, retrieval_task and classification_task"),
        (Dataset.from_dict({"sentence1": ["a"]}), TypeError, "sts_task, pair_task, retrieval_task and classification_task"),
        ([GOOD, "STSBenchmrak"], ValueError, "no task or benchmark named"),
        ([GOOD, 3], TypeError, "got 3"),
        ([GOOD, "STS12VisualSTS"], ValueError, "only text tasks"),
        ([GOOD, LocalSTS()], ValueError, "more than once"),
    ],
)
def test_refuses_unsupported_tasks_before_loading_data(
    tiny: SentenceTransformer, tasks: Any, error: type[Exception], message: str
) -> None:
    seen = read_along(tiny)
    with pytest.raises(error, match=message):
        quiet(tiny, tasks)
    assert GOOD.loads == 0
    assert not seen


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        ({"sizes": [Size(2, 8)], "num_layers": 2}, ValueError, "both were given"),
        ({"sizes": [Size(2, 8)], "dims": [8]}, ValueError, "both were given"),
        ({"sizes": []}, ValueError, "sizes is empty"),
        ({"num_layers": []}, ValueError, "num_layers is empty"),
        ({"num_layers": 5}, ValueError, "num_layers=5: the model has 4 layers"),
        ({"num_layers": range(5)}, ValueError, "num_layers=0: 0 layers mean a token table"),
        ({"num_layers": True}, TypeError, "num_layers must be an integer"),
        ({"dims": [8, 33]}, ValueError, "dims=33: the model has 32 dimensions"),
        ({"dims": [8, 8]}, ValueError, "more than once"),
        ({"dims": []}, ValueError, "dims is empty"),
        ({"cache": 3}, TypeError, r"cache must be a folder or an mteb ResultCache, got 3 \(int\)"),
        ({"cache": __file__}, ValueError, "cache must be a folder, but '.*test_evaluate.py' is a file"),
    ],
)
def test_refuses_invalid_sizes(
    tiny: SentenceTransformer, wanted: dict[str, Any], error: type[Exception], message: str
) -> None:
    task = LocalSTS()
    with pytest.raises(error, match=message):
        quiet(tiny, task, **wanted)
    assert task.loads == 0


def test_refuses_other_objects_as_model() -> None:
    with pytest.raises(TypeError, match="Expected a SentenceTransformer, got str"):
        quiet("all-MiniLM-L6-v2", LocalSTS())
