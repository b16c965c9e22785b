"""Queries and documents of different sizes: cells equal mteb's scores of two cut models."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from mteb.types import PromptType
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from st_matryoshka2d import GridResult, Size, evaluate_truncations, retrieval_task, truncate
from st_matryoshka2d._hosts.mteb_texts import document_texts
from st_matryoshka2d.encoding.existing_embeddings import Existing
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.embeddings import Embeddings, TextEncoder
from tests.support import families
from tests.support.labels import LocalPairs, PairsInOneRow
from tests.support.pipelines import OTHERS, TEXTS, turned
from tests.support.quick import quick
from tests.support.search import Apart, LocalReranking, LocalRetrieval
from tests.support.sts import AsymmetricSTS, LocalSTS, cells, cells_of_mteb, quiet, read_along

pytestmark = [pytest.mark.filterwarnings("ignore:SentenceTransformers that use prompts:UserWarning")]


class TwoModels:
    """An mteb model of a query model and a document model; for pairs, the order of calls decides."""

    def __init__(self, queries: SentenceTransformer, documents: SentenceTransformer) -> None:
        self.sides = [SentenceTransformerEncoderWrapper(queries), SentenceTransformerEncoderWrapper(documents)]
        self.mteb_model_meta = self.sides[0].mteb_model_meta
        self.turns = itertools.cycle((0, 1))

    def encode(self, inputs: Any, *, prompt_type: PromptType | None = None, **kwargs: Any) -> Any:
        turn = next(self.turns) if prompt_type is None else int(prompt_type == PromptType.document)
        return self.sides[turn].encode(inputs, prompt_type=prompt_type, **kwargs)

    def similarity(self, one: Any, two: Any) -> Any:
        return self.sides[0].similarity(one, two)

    def similarity_pairwise(self, one: Any, two: Any) -> Any:
        return self.sides[0].similarity_pairwise(one, two)


def of_two_cuts(model: SentenceTransformer, queries: Size, documents: int, task: Any) -> dict[Any, float]:
    cuts = (
        truncate(model, num_layers=queries.num_layers, dim=queries.dim),
        truncate(model, num_layers=documents, dim=queries.dim),
    )
    return cells_of_mteb(TwoModels(*cuts), task)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "task", quick([LocalSTS, AsymmetricSTS, LocalPairs, PairsInOneRow, Apart, LocalReranking], LocalSTS, Apart)
)
def test_cell_matches_two_cut_models(tiny: SentenceTransformer, task: Any) -> None:
    tiny.prompts = {"query": "the old ", "document": "a river "}
    grid = quiet(tiny, task(), num_layers=[1, 3], dims=[8, 32], documents=["4L-32d", Size(2, 8)])
    assert grid.document_sizes == ["4L-32d", "2L-8d"]
    for side, layers, dims in (("4L-32d", 4, (8, 32)), ("2L-8d", 2, (8,))):
        one = grid.at(documents=side)
        assert one.sizes == [Size(n, d) for n in (1, 3) for d in dims]
        for size in one.sizes:
            expected = of_two_cuts(tiny, size, layers, task())
            assert cells(one, size, task.metadata.name) == pytest.approx(expected, abs=1e-6, nan_ok=True), (side, str(size))


def test_same_size_documents_give_plain_grid(tiny: SentenceTransformer) -> None:
    plain = quiet(tiny, Apart(), sizes=["3L-16d"])
    across = quiet(tiny, Apart(), sizes=["3L-16d", "1L-16d"], documents="3L-32d")
    assert across.score("3L-16d") == pytest.approx(plain.score("3L-16d"), abs=1e-9)
    assert across.score("1L-16d") != plain.score("3L-16d")


def test_each_text_goes_through_the_model_once(tiny: SentenceTransformer) -> None:
    task = LocalSTS()
    task.load_data()
    seen = read_along(tiny)
    quiet(tiny, task, num_layers=[1, 3], dims=16, documents=["4L-32d", "2L-16d"])
    # the others verify cuts
    encoded = {text: times for text, times in seen.items() if text in task.texts()}
    assert set(encoded) == task.texts()
    assert set(encoded.values()) == {1}


def test_documents_skip_layers_that_only_queries_need(tiny: SentenceTransformer) -> None:
    batches: list[int] = []
    last: Any = tiny[0].model.encoder.layer[-1]
    last.register_forward_pre_hook(lambda module, args: batches.append(len(args[0])))
    through_last = []
    for documents in ("4L-32d", "2L-32d"):
        batches.clear()
        quiet(tiny, LocalRetrieval(), sizes=["4L-32d"], documents=documents, layers="first")
        through_last.append(sum(batches))
    task = LocalRetrieval()
    task.load_data()
    splits = [split for of_subset in task.dataset.values() for split in of_subset.values()]
    documents_in_all = sum(len(split["corpus"]) for split in splits)
    # the rest are queries, and texts that verify the cut
    assert through_last[1] < documents_in_all < through_last[0]


def of_own_search(tiny: SentenceTransformer) -> tuple[Any, NDArray[np.floating]]:
    """Return a task, and the index of its documents."""
    tiny.prompts = {"query": "the old ", "document": "a river "}
    corpus = {f"d{row}": {"title": "a house" if row % 3 else "", "text": text} for row, text in enumerate(TEXTS)}
    task = retrieval_task(
        corpus, dict(enumerate(OTHERS)), {row: [f"d{2 * row}", f"d{2 * row + 1}"] for row in range(len(OTHERS))}
    )
    return task, tiny.encode_document([f"{each['title']} {each['text']}".strip() for each in corpus.values()])


@pytest.mark.parametrize("name", ["", "index.npy"])
def test_an_index_that_exists_is_searched(name: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    task, index = of_own_search(tiny)
    expected = quiet(tiny, task, num_layers=[1, 4], dims=[8, 32], documents="4L-32d")
    given: Any = tmp_path / name if name else index
    if name:
        np.save(given, index)
    seen = read_along(tiny)
    found = quiet(tiny, task, num_layers=[1, 4], dims=[8, 32], embeddings=given)
    assert found.document_sizes == expected.document_sizes
    np.testing.assert_allclose(found.to_frame()["score"], expected.to_frame()["score"], atol=1e-6)
    assert sum(text in " ".join(seen) for text in TEXTS) <= 8 < len(TEXTS)  # those that were compared


def test_a_resumed_search_takes_the_rows_of_its_chunk(tiny: SentenceTransformer) -> None:
    task, index = of_own_search(tiny)
    existing = Existing(index, "documents")
    embeddings = Embeddings(TextEncoder(tiny, [1, 4], [4]), existing=existing)
    about = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default"}
    corpus = document_texts(task.dataset["default"]["test"]["corpus"][:])
    found = embeddings.of_documents(corpus[20:30], 20, tqdm(disable=True), **about)
    assert np.array_equal(found[4].numpy(), index[20:30])


@pytest.mark.parametrize(
    ("change", "given", "told"),
    [
        (lambda index: np.roll(index, 1, axis=1), {}, r"row \d+ is not what this model makes of the document '"),
        (lambda index: index[1:], {"corpus_chunk_size": 16}, "is not what this model makes|ends after"),
        (lambda index: np.concatenate([index, index[:1]]), {}, "has more rows than the"),
        (lambda index: index[:, :8], {}, r"must be \(documents, 32\)"),
        (np.asarray, {"documents": "2L-8d"}, "by all layers. Give one, and documents='4L-32d'"),
        (np.asarray, {"tasks": LocalSTS()}, "those of one retrieval task"),
    ],
)
def test_another_index_is_refused(change: Any, given: dict[str, Any], told: str, tiny: SentenceTransformer) -> None:
    task, index = of_own_search(tiny)
    with pytest.raises(UsageError, match=told):
        quiet(tiny, **{"tasks": task, "sizes": ["1L-8d"], "embeddings": change(index), **given})


def test_grid_records_document_size(tiny: SentenceTransformer, tmp_path: Path) -> None:
    plain = quiet(tiny, LocalSTS(), sizes=["3L-16d"])
    across = quiet(tiny, LocalSTS(), sizes=["3L-16d"], documents="4L-32d")
    assert "documents at 4L-32d" in str(across)
    both = GridResult.merge([plain, across])
    assert both.score("3L-16d") == plain.score("3L-16d")
    assert "Also 4L-32d: grid.at(documents=...)" in str(both)
    assert both.at(documents=Size(4, 32)).score("3L-16d") == across.score("3L-16d")
    assert set(both.to_frame()["documents"]) == {"same size", "4L-32d"}
    for name in ("grid.parquet", "grid.json"):
        both.save(tmp_path / name)
        assert GridResult.load(tmp_path / name).at(documents="4L-32d").score("3L-16d") == across.score("3L-16d")
    assert "documents at 4L-32d" in str(plain.compare(across))


def test_killed_run_resumes_from_cache(tiny: SentenceTransformer, tmp_path: Path) -> None:
    task = LocalRetrieval()
    task.load_data()
    first = quiet(tiny, task, sizes=["1L-16d"], documents="4L-32d", cache=tmp_path)
    plain = quiet(tiny, LocalRetrieval(), sizes=["1L-16d"], cache=tmp_path)
    assert first.score("1L-16d") != plain.score("1L-16d")  # the results do not mix
    texts = {text for name in ("corpus", "queries") for text in task.dataset["default"]["test"][name]["text"]}
    seen = read_along(tiny)
    again = quiet(tiny, LocalRetrieval(), sizes=["1L-16d"], documents="4L-32d", cache=tmp_path)
    assert not set(seen) & texts
    assert again.score("1L-16d") == first.score("1L-16d")


def test_an_aligned_model_is_scored_through_the_readouts_of_both_depths(tiny: SentenceTransformer) -> None:
    from st_matryoshka2d import align

    texts = [" ".join(pair) for pair in itertools.product(families.WORDS[:12], families.WORDS[:12])]
    model = turned(align(tiny, texts))
    grid = quiet(model, LocalSTS(), num_layers=2, dims=16, documents="4L-32d")
    expected = of_two_cuts(model, Size(2, 16), 4, LocalSTS())
    assert cells(grid, Size(2, 16), "STS13") == pytest.approx(expected, abs=1e-6)


def test_truncations_have_documents_of_the_same_size(tiny: SentenceTransformer) -> None:
    found = evaluate_truncations(tiny, LocalSTS(), dims=8, seeds=2, windows=[], show_progress_bar=False).grid
    assert found.document_sizes == ["same size"]
