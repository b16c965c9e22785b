"""An asymmetric model is scored as mteb scores it, and as the aligned model with these two sizes."""

from __future__ import annotations

import mteb
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from st_matryoshka2d import align, asymmetric, benchmark_latency
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.queries.fit_queries import with_table
from tests.support import families, task_types
from tests.support.pipelines import TEXTS, normalized, turned
from tests.support.search import Apart
from tests.support.sts import quiet

pytestmark = task_types.marks


@pytest.fixture
def aligned(tiny: SentenceTransformer) -> SentenceTransformer:
    model = turned(align(normalized(tiny), TEXTS, steps=0))
    model.prompts = {"query": "the cat ", "document": "a dog "}
    return model


def test_scores_are_those_of_mteb_and_of_both_sizes(aligned: SentenceTransformer) -> None:
    model, dims = asymmetric(aligned, 2), [8, 32]
    grid = quiet(model, Apart(), dims=dims)
    assert (grid.document_sizes, list(map(str, grid.sizes))) == (["4L-32d"], ["2L-8d", "2L-32d"])
    across = quiet(aligned, Apart(), num_layers=2, dims=dims, documents="4L-32d")
    pd.testing.assert_frame_equal(grid.frame, across.frame, atol=1e-5)
    for dim in dims:
        cut = asymmetric(aligned, f"2L-{dim}d")
        (result,) = mteb.evaluate(cut, Apart(), cache=None, show_progress_bar=False).task_results
        assert grid.score(f"2L-{dim}d") == pytest.approx(result.get_score(), abs=1e-4)
    assert grid.score("2L-32d") != quiet(aligned, Apart(), sizes=["2L-32d"]).score("2L-32d")
    assert str(grid.model).endswith("-aligned-2L-32d-query-4L-32d-document")


def test_a_narrow_model_is_scored_within_its_dims(aligned: SentenceTransformer) -> None:
    model = asymmetric(aligned, "1L-16d")
    grid = quiet(model, Apart())
    assert (grid.document_sizes, list(map(str, grid.sizes))) == (["4L-16d"], ["1L-8d", "1L-16d"])
    assert model.encode_query("cat").shape == (16,), "the model does not change"


def test_each_side_is_timed(aligned: SentenceTransformer) -> None:
    times = benchmark_latency(asymmetric(aligned, 1), rounds=1, batch_size=2, show_progress_bar=False)
    assert list(times["num_layers"]) == [1, 4]
    assert list(times["theory"]) == [4, 1]
    assert times["parameters"].is_monotonic_increasing


def test_a_token_table_is_scored_and_timed(aligned: SentenceTransformer) -> None:
    rows = torch.randn(len(families.VOCABULARY), 32, generator=torch.Generator().manual_seed(0))
    table = StaticEmbedding(aligned.tokenizer.backend_tokenizer, rows)
    model = asymmetric(with_table(Pipeline.of(aligned), table, {}, {}).model, 0)
    grid = quiet(model, Apart(), dims=32)
    (result,) = mteb.evaluate(model, Apart(), cache=None, show_progress_bar=False).task_results
    assert grid.score("0L-32d") == pytest.approx(result.get_score(), abs=1e-4)
    times = benchmark_latency(model, rounds=1, batch_size=2, show_progress_bar=False)
    assert list(times["num_layers"]) == [0, 4]
    assert times["parameters"][0] == rows.numel()
