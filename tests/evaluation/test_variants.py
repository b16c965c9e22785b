"""Similarity functions, prompts, precisions, chunks and batches: cells are mteb's, for tasks of many types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from mteb.models import CompressionWrapper, ModelMeta
from mteb.types import OutputDType
from sentence_transformers import SentenceTransformer
from torch.utils.data import DataLoader

from st_matryoshka2d import Size
from st_matryoshka2d.evaluation.variants import quantise, ranges_of
from tests.support import families, labels, search
from tests.support.quick import quick
from tests.support.sts import AsymmetricSTS, LocalSTS, quiet
from tests.support.task_types import MakeTask, assert_cell_is_mteb, found, marks

pytestmark = marks

SIMILARITIES = ["cosine", "dot", "euclidean", "manhattan"]
PRECISIONS = ["float32", "int8", "binary"]
PROMPTS: list[dict[str, str]] = [
    {"query": "the old red ", "document": "a river "},
    {"query": "", "document": "a blue house "},
    {"Retrieval": "new ", "Classification": "slowly ", "Clustering": "the dog ", "query": "the old ", "document": "a "},
    {"Reranking-query": "bird ", "Retrieval-document": "under ", "PairClassification": "over ", "query": ""},
    {"STS": "a slowly ", "query": "the old ", "document": ""},
    {
        **{"SciFact-query": "new cat ", "SciFact": "tree ", "query": "the ", "document": "on "},
        **{"ImdbClassification": "red ", "STS13": "the red ", "STS15-query": "the blue ", "STS15-document": "a new "},
    },
]
RANKING = [search.FewResults, search.LocalReranking, labels.LocalBitext, labels.LocalSummaries]
# mteb supports no other pairwise similarity than these two
PAIRWISE = [LocalSTS, labels.LocalPairs]
PROMPTED = [search.FewResults, search.LocalReranking, search.LocalInstructions, labels.BinaryClassification, AsymmetricSTS]
PROMPTED += [labels.LocalClustering, labels.LocalPairs, LocalSTS]
PRECISE = [LocalSTS, search.LocalRetrieval, search.LocalReranking, labels.BinaryClassification, labels.LocalClustering]
PRECISE += [labels.LocalPairs, labels.LocalBitext]
CHUNKED = [search.FewResults, search.SkipFirst, search.LocalRetrieval, search.ManySubsets]

# The model, the task, what is set on the model, and the arguments of `evaluate`.
Case = tuple[str, MakeTask, dict[str, Any], dict[str, Any]]
BY_SIMILARITY: list[Case] = [
    *(("skewed", kind, {"similarity_fn_name": name}, {}) for kind in RANKING for name in SIMILARITIES),
    *(("skewed", kind, {"similarity_fn_name": name}, {}) for kind in PAIRWISE for name in ("cosine", "dot")),
]
IN_CHUNKS: list[Case] = [
    *(("skewed", CHUNKED[0], {"similarity_fn_name": name}, {"corpus_chunk_size": 11}) for name in SIMILARITIES),
    *(("tiny", kind, {}, {"corpus_chunk_size": 7}) for kind in CHUNKED),
    *(("tiny", CHUNKED[0], {}, {"corpus_chunk_size": search.DOCUMENTS + more}) for more in (-1, 0, 1)),
    ("tiny", search.LocalRetrieval, {}, {"corpus_chunk_size": 13, "precisions": ["float32", "binary"]}),
]
BY_BATCH: list[Case] = [
    ("tiny", kind, {}, {"batch_size": size})
    for size in (5, 1, 1000)
    for kind in (search.FewResults, labels.BinaryClassification)
]
NORMALIZED: list[Case] = [
    ("normalized", search.LocalRetrieval, {"similarity_fn_name": "dot"}, {}),
    ("normalized", labels.BinaryClassification, {}, {}),
    ("normalized", search.LocalRetrieval, {}, {}),
    ("normalized", labels.LocalClustering, {}, {}),
]
BY_PROMPT: list[Case] = [("tiny", kind, {"prompts": prompts}, {}) for prompts in PROMPTS[::-1] for kind in PROMPTED]
BY_PRECISION: list[Case] = [
    ("skewed", search.LocalRetrieval, {"similarity_fn_name": "manhattan"}, {"precisions": PRECISIONS}),
    ("tiny", LocalSTS, {}, {"precisions": ["int8"]}),
    *(("tiny", kind, {}, {"precisions": PRECISIONS}) for kind in PRECISE),
]
CASES = [*BY_SIMILARITY, *IN_CHUNKS, *BY_BATCH, *NORMALIZED, *BY_PROMPT, *BY_PRECISION]
QUICK = [*BY_SIMILARITY[1::5], IN_CHUNKS[3], IN_CHUNKS[5], IN_CHUNKS[-1], BY_BATCH[0], NORMALIZED[0]]
QUICK += [*BY_PROMPT[: len(PROMPTED)], *BY_PRECISION[:3], BY_PRECISION[5]]


@pytest.fixture
def skewed(tmp_path: Path) -> SentenceTransformer:
    """Embeddings with different lengths and a shared direction, which similarity functions rank differently."""
    return families.pipeline(families.CONFIGS["bert"](), tmp_path, pooling="mean", dense=24, normalize=False)


@pytest.fixture
def normalized(tmp_path: Path) -> SentenceTransformer:
    """A model whose head normalizes: a prefix of a normalized embedding is not normalized again."""
    return families.pipeline(families.CONFIGS["modernbert"](), tmp_path, pooling=("cls", "mean"), dense=24, normalize=True)


def words(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    return " ".join(f"prompts{PROMPTS.index(one)}" if isinstance(one, dict) else str(one) for one in value.values())


@pytest.mark.parametrize(("name", "make_task", "settings", "wanted"), quick(CASES, *QUICK), ids=words)
def test_cells_are_those_of_mteb_with_any_setting(
    name: str, make_task: MakeTask, settings: dict[str, Any], wanted: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    model: SentenceTransformer = request.getfixturevalue(name)
    for what, value in settings.items():
        setattr(model, what, value)
    sizes, precisions = [Size(2, 7), Size(4, model.get_embedding_dimension() or 0)], wanted.get("precisions", ["float32"])
    grid = quiet(model, make_task(), sizes=sizes, **wanted)
    assert grid.precisions == precisions
    for size in sizes:
        for precision in precisions:
            assert_cell_is_mteb(grid, model, make_task, size, precision)
    assert len(grid.to_frame()) == sum(len(found(grid, size, one)) for size in sizes for one in precisions)


def test_settings_change_scores(skewed: SentenceTransformer) -> None:
    """Or the test above could not fail."""

    def score() -> float:
        return quiet(skewed, search.FewResults(), sizes=[Size(4, 24)]).score("4L-24d")

    scores = set()
    for similarity in SIMILARITIES:
        skewed.similarity_fn_name = similarity  # type: ignore[assignment]
        scores.add(score())
    for prompts in (PROMPTS[0], PROMPTS[-1]):
        skewed.prompts = dict(prompts)
        scores.add(score())
    assert len(scores) == len(SIMILARITIES) + 2
    grid = quiet(skewed, search.FewResults(), sizes=[Size(4, 24)], precisions=PRECISIONS)
    assert len({tuple(found(grid, Size(4, 24), precision).values()) for precision in PRECISIONS}) == len(PRECISIONS)


def test_integer_embeddings_have_exact_ties(skewed: SentenceTransformer) -> None:
    """Products of integers are exact and no document is excluded, so no score depends on rounding errors."""
    skewed.similarity_fn_name = "dot"
    sizes = [Size(1, 9), Size(4, 24)]
    grid = quiet(skewed, search.LocalRetrieval(), sizes=sizes, precisions=PRECISIONS)
    for size in sizes:
        for precision in ("int8", "binary"):
            assert_cell_is_mteb(grid, skewed, search.LocalRetrieval, size, precision, ties=False)


def test_which_of_equal_documents_are_kept_does_not_depend_on_chunks(skewed: SentenceTransformer) -> None:
    """With one bit many documents tie, and only some are kept; which ones mteb keeps depends on its sort."""
    skewed.similarity_fn_name = "dot"
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


@pytest.mark.filterwarnings("ignore:Estimating quantization parameters")
@pytest.mark.parametrize("precision", ["int8", "uint8", "int4", "uint4", "binary", "float16", "bfloat16"])
def test_embeddings_are_compressed_as_those_of_a_wrapped_model(tiny: SentenceTransformer, precision: str) -> None:
    texts = [f"{size} {thing}" for size in ("a small", "a large", "no") for thing in ("cat", "car", "piano", "tree")]
    embeddings = torch.from_numpy(tiny.encode(texts))

    class Encoder:
        mteb_model_meta = ModelMeta.create_empty()

        def encode(self, *_: Any, **__: Any) -> torch.Tensor:
            return embeddings

    wrapper: Any = CompressionWrapper(Encoder(), OutputDType(precision))
    loader = DataLoader(Dataset.from_dict({"text": texts}))
    wanted = wrapper.encode(loader, task_metadata=None, hf_split="test", hf_subset="default")
    assert torch.equal(quantise(embeddings, precision), torch.nan_to_num(torch.as_tensor(wanted).float()))


@pytest.mark.parametrize("precision", ["int8", "uint4"])
def test_chunks_are_scaled_to_given_ranges(precision: str) -> None:
    embeddings = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    whole, ranges = quantise(embeddings, precision), ranges_of(embeddings)
    assert torch.equal(torch.cat([quantise(chunk, precision, ranges) for chunk in embeddings.split(7)]), whole)
    assert torch.equal(quantise(2 * embeddings, precision, ranges).amax(0), whole.amax(0))
