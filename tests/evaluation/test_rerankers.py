"""Depths of a reranker are scored as mteb scores each cut alone, from one pass; and timed in pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from torch import nn

from st_matryoshka2d import benchmark_latency, evaluate, retrieval_task, truncate
from st_matryoshka2d.evaluation.rerankers import PairScores
from st_matryoshka2d.model.layers import Layers
from st_matryoshka2d.model.pipeline import Pipeline
from tests.support import classes, families
from tests.support.classes import PAIRS
from tests.support.quick import quick

pytestmark = pytest.mark.filterwarnings("ignore::st_matryoshka2d.errors.DataWarning")


def task(name: str = "Mine") -> Any:
    draw = np.random.default_rng(0)
    corpus = {f"d{place}": " ".join(draw.choice(families.WORDS, 5)) for place in range(30)}
    queries = {f"q{place}": " ".join(draw.choice(families.WORDS, 3)) for place in range(40)}
    listed = {query: draw.permutation([*corpus])[:12].tolist() for query in queries}
    qrels = {query: documents[:2] for query, documents in listed.items()}
    return retrieval_task(corpus, queries, qrels, candidates=listed, name=name)


@pytest.fixture
def model(tmp_path: Path) -> CrossEncoder:
    return classes.reranker(tmp_path / "weights")


@pytest.mark.parametrize("layers", ["first", "ends"])
@pytest.mark.parametrize("name", quick(["bert", "modernbert", "deberta-v2", "qwen3", "roberta", "albert"], "bert", "qwen3"))
def test_scores_of_all_depths_are_those_of_the_cuts(name: str, layers: str, tmp_path: Path) -> None:
    model = classes.reranker(tmp_path / "weights", name)
    pipeline = Pipeline.of(model, CrossEncoder).keeping(layers)
    found = PairScores(pipeline, [1, 2, 3, 4], batch_size=4, show_progress_bar=False)(PAIRS)
    for place, depth in enumerate((1, 2, 3, 4)):
        cut = truncate(model, num_layers=depth, layers=layers)
        wanted = cut.predict(PAIRS, activation_fn=nn.Identity())
        np.testing.assert_allclose(found[:, place], wanted, atol=2e-5, err_msg=str(depth))


def test_depths_cost_as_few_layers_as_they_say(model: CrossEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = 0

    def count(*args: Any) -> None:
        nonlocal runs
        runs += 1

    scores = PairScores(Pipeline.of(model, CrossEncoder), [1, 2, 3, 4], batch_size=100, show_progress_bar=False)
    for block in scores._whole.model[0].model.bert.encoder.layer:
        # the attention within a block, as some depths call the block with another state
        block.attention.register_forward_hook(count)
    scores(PAIRS)
    assert runs == round(4 * Layers(4, "ends").passes())
    scores(PAIRS)
    assert runs == round(4 * Layers(4, "ends").passes()), "each pair is read once"


def test_a_grid_is_what_mteb_says_of_each_cut(model: CrossEncoder) -> None:
    grid = evaluate(model, task(), num_layers=[2, 4], show_progress_bar=False)
    assert [str(size) for size in grid.sizes] == ["2L-1d", "4L-1d"]
    for size in grid.sizes:
        cut = truncate(model, num_layers=size.num_layers)
        [result] = mteb.evaluate(cut, task(), cache=None, co2_tracker=False).task_results
        assert grid.score(size) == pytest.approx(result.get_score(), abs=1e-5)
    assert len(grid.items) > 0, "scores of queries, for significance tests"


def test_a_grid_of_a_reranker_is_compared_and_recommended(model: CrossEncoder) -> None:
    grid = evaluate(model, [task("A"), task("B")], show_progress_bar=False)
    times = benchmark_latency(model, batch_size=4, rounds=2, show_progress_bar=False)
    best = grid.with_latency(times).recommend(0.01, cost="megabytes")  # times of few pairs vary
    assert best.size.num_layers == 1
    assert "1L-1d" in str(best)
    assert len(evaluate(model, task(), layers=[1, 4], show_progress_bar=False).sizes) == 1


def test_pairs_are_timed(model: CrossEncoder) -> None:
    times = benchmark_latency(model, [2], PAIRS, batch_size=8, rounds=2, show_progress_bar=False)
    assert list(times["num_layers"]) == [2, 4]
    assert times["milliseconds"][0] / times["milliseconds_per_text"][0] == pytest.approx(len(PAIRS))


def test_a_classifier_of_pairs_is_cut_though_it_does_not_rank(tmp_path: Path) -> None:
    assert truncate(classes.reranker(tmp_path, num_labels=3), num_layers=2).predict(PAIRS).shape == (len(PAIRS), 3)


def test_no_hook_stays_on_the_model(model: CrossEncoder) -> None:
    scores = PairScores(Pipeline.of(model, CrossEncoder), [2], batch_size=100, show_progress_bar=False)
    before = model.predict(PAIRS, convert_to_tensor=True)
    scores(PAIRS)
    assert torch.equal(model.predict(PAIRS, convert_to_tensor=True), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
