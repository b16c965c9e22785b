"""Similarity functions, prompts, modules after the pooling, and embeddings stored in fewer bits, for tasks of many types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mteb.models import CompressionWrapper
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, Size
from tests.support import families, labels, search
from tests.support.quick import quick
from tests.support.sts import AsymmetricSTS, LocalSTS, quiet
from tests.support.task_types import MakeTask, assert_cell_is_mteb, assert_grid_is_mteb, found, marks, random_sizes

pytestmark = marks

SIMILARITIES = ["cosine", "dot", "euclidean", "manhattan"]
RANKING = [search.FewResults, search.LocalReranking, labels.LocalBitext, labels.LocalSummaries]
# mteb supports no other pairwise similarity
PAIRWISE = [LocalSTS, labels.LocalPairs]
BY_SIMILARITY = [(kind, similarity) for kind in RANKING for similarity in SIMILARITIES]
BY_SIMILARITY += [(kind, similarity) for kind in PAIRWISE for similarity in ("cosine", "dot")]


@pytest.fixture
def skewed(tmp_path: Path) -> SentenceTransformer:
    """Embeddings with different lengths and a shared direction, which similarity functions rank differently."""
    return families.pipeline(families.CONFIGS["bert"](), tmp_path, pooling="mean", dense=24, normalize=False)


@pytest.fixture
def normalized(tmp_path: Path) -> SentenceTransformer:
    return families.pipeline(families.CONFIGS["modernbert"](), tmp_path, pooling=("cls", "mean"), dense=24, normalize=True)


@pytest.mark.parametrize(("make_task", "similarity"), quick(BY_SIMILARITY, *BY_SIMILARITY[::4]))
def test_similarity_is_the_models_own(skewed: SentenceTransformer, make_task: MakeTask, similarity: str) -> None:
    skewed.similarity_fn_name = similarity  # type: ignore[assignment]
    sizes = [Size(2, 7), Size(4, 24)]
    assert_grid_is_mteb(quiet(skewed, make_task(), sizes=sizes), skewed, make_task, sizes)


def test_similarities_rank_differently(skewed: SentenceTransformer) -> None:
    """Or the test above could not fail."""
    scores = set()
    for similarity in SIMILARITIES:
        skewed.similarity_fn_name = similarity  # type: ignore[assignment]
        scores.add(quiet(skewed, search.FewResults(), sizes=[Size(4, 24)]).score("4L-24d"))
    assert len(scores) == len(SIMILARITIES)


@pytest.mark.parametrize("similarity", quick(SIMILARITIES, "cosine", "manhattan"))
def test_a_corpus_in_many_chunks(skewed: SentenceTransformer, similarity: str) -> None:
    skewed.similarity_fn_name = similarity  # type: ignore[assignment]
    sizes = [Size(1, 5), Size(4, 24)]
    grid = quiet(skewed, search.FewResults(), sizes=sizes, corpus_chunk_size=11)
    assert_grid_is_mteb(grid, skewed, search.FewResults, sizes)


@pytest.mark.parametrize(
    ("make_task", "similarity"),
    quick(
        [
            (search.LocalRetrieval, "cosine"),
            (search.LocalRetrieval, "dot"),
            (labels.BinaryClassification, "cosine"),
            (labels.LocalClustering, "cosine"),
        ],
        (search.LocalRetrieval, "dot"),
        (labels.BinaryClassification, "cosine"),
    ),
)
def test_a_head_that_normalizes(normalized: SentenceTransformer, make_task: MakeTask, similarity: str) -> None:
    """A prefix of a normalized embedding is not normalized again."""
    normalized.similarity_fn_name = similarity  # type: ignore[assignment]
    sizes = [Size(2, 9), Size(4, 24)]
    assert_grid_is_mteb(quiet(normalized, make_task(), sizes=sizes), normalized, make_task, sizes)


PROMPTS = [
    {"query": "the old red ", "document": "a river "},
    {"query": "", "document": "a blue house "},
    {"Retrieval": "new ", "Classification": "slowly ", "Clustering": "the dog ", "query": "the old ", "document": "a "},
    {
        "Reranking-query": "bird ",
        "Retrieval-document": "under ",
        "PairClassification": "over ",
        "query": "",
        "document": "a ",
    },
    {"SciFact-query": "new cat ", "ImdbClassification": "red ", "SciFact": "tree ", "query": "the ", "document": "on "},
]
PROMPTED = [search.FewResults, search.LocalReranking, search.LocalInstructions, labels.BinaryClassification, AsymmetricSTS]
PROMPTED += [labels.LocalClustering, labels.LocalPairs]


@pytest.mark.parametrize("prompts", quick(PROMPTS, PROMPTS[0], PROMPTS[-1]))
def test_prompts_are_those_that_mteb_would_use(tiny: SentenceTransformer, prompts: dict[str, str]) -> None:
    tiny.prompts = dict(prompts)
    grid = quiet(tiny, [make_task() for make_task in PROMPTED], sizes=[Size(3, 18)])
    for make_task in PROMPTED:
        assert_grid_is_mteb(grid.at(tasks=make_task.metadata.name), tiny, make_task, [Size(3, 18)])


@pytest.mark.parametrize("prompts", quick(PROMPTS, PROMPTS[0], PROMPTS[-1]))
def test_prompts_change_scores(tiny: SentenceTransformer, prompts: dict[str, str]) -> None:
    """Or the test above could not fail."""
    plain = quiet(tiny, search.FewResults(), sizes=[Size(3, 18)])
    tiny.prompts = dict(prompts)
    assert found(quiet(tiny, search.FewResults(), sizes=[Size(3, 18)]), Size(3, 18)) != found(plain, Size(3, 18))


def test_pooling_that_leaves_the_prompt_out(tiny: SentenceTransformer) -> None:
    tiny.prompts = {"query": "the old red ", "document": "a river "}
    tiny.set_pooling_include_prompt(False)
    grid = quiet(tiny, search.FewResults(), sizes=[Size(2, 20)])
    assert_grid_is_mteb(grid, tiny, search.FewResults, [Size(2, 20)])


PRECISIONS = ["float32", "int8", "binary"]
PRECISE = [LocalSTS, search.LocalRetrieval, search.LocalReranking, labels.BinaryClassification, labels.LocalClustering]
PRECISE += [labels.LocalPairs, labels.LocalBitext]


def assert_every_precision_is_mtebs(grid: GridResult, model: SentenceTransformer, make_task: MakeTask, size: Size) -> None:
    assert grid.precisions == PRECISIONS
    assert len(grid.to_frame()) == sum(len(found(grid, size, precision)) for precision in PRECISIONS)
    for precision in PRECISIONS:
        assert_cell_is_mteb(grid, model, make_task, size, precision)


@pytest.mark.parametrize("make_task", quick(PRECISE, LocalSTS, search.LocalRetrieval, labels.BinaryClassification))
def test_embeddings_in_fewer_bits(tiny: SentenceTransformer, make_task: MakeTask) -> None:
    size = random_sizes(tiny)[0]
    grid = quiet(tiny, make_task(), sizes=[size], precisions=PRECISIONS)
    assert_every_precision_is_mtebs(grid, tiny, make_task, size)
    assert len({tuple(found(grid, size, precision).values()) for precision in PRECISIONS}) == len(PRECISIONS)


def test_integer_embeddings_have_exact_ties(skewed: SentenceTransformer) -> None:
    """Products of integers are exact and no document is excluded, so no score depends on rounding errors."""
    skewed.similarity_fn_name = "dot"  # type: ignore[assignment]
    sizes = [Size(1, 9), Size(4, 24)]
    grid = quiet(skewed, search.LocalRetrieval(), sizes=sizes, precisions=PRECISIONS)
    for size in sizes:
        for precision in ("int8", "binary"):
            assert_cell_is_mteb(grid, skewed, search.LocalRetrieval, size, precision, ties=False)


def test_other_similarities_of_embeddings_in_fewer_bits(skewed: SentenceTransformer) -> None:
    skewed.similarity_fn_name = "manhattan"  # type: ignore[assignment]
    grid = quiet(skewed, search.LocalRetrieval(), sizes=[Size(3, 15)], precisions=PRECISIONS)
    assert_every_precision_is_mtebs(grid, skewed, search.LocalRetrieval, Size(3, 15))


def test_a_corpus_in_many_chunks_in_fewer_bits(tiny: SentenceTransformer) -> None:
    sizes = [Size(2, 12), Size(4, 32)]
    grid = quiet(tiny, search.LocalRetrieval(), sizes=sizes, precisions=["float32", "binary"], corpus_chunk_size=13)
    for size in sizes:
        for precision in ("float32", "binary"):
            assert_cell_is_mteb(grid, tiny, search.LocalRetrieval, size, precision)


def test_which_of_equal_documents_are_kept_does_not_depend_on_chunks(skewed: SentenceTransformer) -> None:
    """With one bit many documents tie, and only some are kept; which ones mteb keeps depends on its sort."""
    skewed.similarity_fn_name = "dot"  # type: ignore[assignment]
    wanted: dict[str, Any] = {"sizes": [Size(2, 12), Size(4, 24)], "precisions": ["binary"]}
    grids = [quiet(skewed, search.FewResults(), corpus_chunk_size=chunk, **wanted) for chunk in (1000, 13)]
    assert grids[0].to_frame().equals(grids[1].to_frame())


def test_int8_ranges_are_those_of_the_first_chunk(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """mteb computes them from all documents; `evaluate`, as documented, from the first chunk of documents."""
    chunk, size = 40, Size(4, 32)
    quantize = CompressionWrapper._quantize_embeddings

    def within_the_first(self: CompressionWrapper, embeddings: torch.Tensor) -> Any:
        first = embeddings[:chunk] if len(embeddings) == search.DOCUMENTS else embeddings
        return quantize(self, embeddings.clamp(first.amin(0), first.amax(0)))

    grid = quiet(tiny, search.LocalRetrieval(), sizes=[size], precisions="int8", corpus_chunk_size=chunk)
    monkeypatch.setattr(CompressionWrapper, "_quantize_embeddings", within_the_first)
    assert_cell_is_mteb(grid, tiny, search.LocalRetrieval, size, "int8")


def test_one_precision_alone(tiny: SentenceTransformer) -> None:
    grid = quiet(tiny, LocalSTS(), sizes=[Size(3, 9)], precisions="int8")
    assert_cell_is_mteb(grid, tiny, LocalSTS, Size(3, 9), "int8")
