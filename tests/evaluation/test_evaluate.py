"""Cells of the grid equal mteb's scores of the cut model."""

from __future__ import annotations

from pathlib import Path

import mteb
import numpy as np
import pytest
from mteb.benchmarks.benchmark import Benchmark
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, Size, TruncatedTransformer, sizes_ladder, truncate
from tests.support import families
from tests.support.quick import quick
from tests.support.sts import ConstantSTS, LocalSTS, OtherSTS, cells, cells_of_mteb, quiet


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
