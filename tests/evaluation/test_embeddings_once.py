"""Each text is embedded once per prompt for any number of sizes, for tasks of many types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, truncate
from tests.support import labels, search
from tests.support.quick import quick
from tests.support.sts import AsymmetricSTS, quiet, read_along
from tests.support.task_types import MakeTask, marks, oracle

pytestmark = marks

MANY: dict[str, Any] = {"sizes": [Size(1, 15), Size(4, 32)]}
PROMPTS = {"query": "the old ", "document": "a river "}


def seen_while(model: SentenceTransformer, work: Callable[[], object]) -> Counter[str]:
    """Count how often each text is embedded, without the texts that verify a cut."""
    seen = read_along(model)
    for num_layers in range(1, 5):
        truncate(model, num_layers=num_layers)  # cuts are verified once
    seen.clear()
    work()
    return seen


def seen_by_the_grid(model: SentenceTransformer, task: Any, **wanted: Any) -> Counter[str]:
    return seen_while(model, lambda: quiet(model, task, **{**MANY, **wanted}))


def seen_by_mteb(model: SentenceTransformer, task: Any) -> set[str]:
    return set(seen_while(model, lambda: oracle(model, task, Size(1, 4))))


def texts(rows: Iterable[dict[str, Any]], prompt: str = "") -> set[str]:
    return {prompt + f"{row.get('title') or ''} {row['text']}".strip() for row in rows}


ONE_PROMPT = [
    *(labels.LocalClustering, labels.PairsInOneRow, labels.LocalClassification, labels.BinaryClassification),
    *(labels.CrossValidated, labels.LocalMultilabel, labels.LocalRegression, labels.LegacyClustering, labels.LocalBitext),
    labels.LocalSummaries,
]
TWO_PROMPTS = [AsymmetricSTS, search.LocalReranking, labels.LocalPairs, search.LocalRetrieval]
TWO_PROMPTS += [search.FewResults, search.ManySubsets, search.LocalInstructions]
CASES: list[tuple[MakeTask, dict[str, str], int]] = [
    *((kind, {}, 1) for kind in ONE_PROMPT),
    *((kind, PROMPTS, 1) for kind in TWO_PROMPTS),
    # the model runs in this process: workers receive embeddings
    (labels.BinaryClassification, {}, 2),
]


@pytest.mark.parametrize(("make_task", "prompts", "jobs"), quick(CASES, *CASES[:2], *CASES[len(ONE_PROMPT) :][:2]))
def test_each_text_once_for_each_prompt(
    tiny: SentenceTransformer, make_task: MakeTask, prompts: dict[str, str], jobs: int
) -> None:
    tiny.prompts = dict(prompts)
    seen = seen_by_the_grid(tiny, make_task(), n_jobs=jobs)
    assert set(seen.values()) == {1}
    assert set(seen) == seen_by_mteb(tiny, make_task())
    assert len(seen) > 40
    assert all(any(text.startswith(prompt) for text in seen) for prompt in prompts.values())


def test_training_and_test_texts(tiny: SentenceTransformer) -> None:
    task = labels.LocalClassification()
    task.load_data()
    seen = seen_by_the_grid(tiny, task, sizes=[Size(4, 32)])
    for subset in ("one", "two"):
        for split in ("validation", "test"):
            assert texts(task.dataset[subset][split]) <= set(seen)
        drawn = texts(task.dataset[subset]["train"]) & set(seen)
        assert 4 * task.samples_per_label <= len(drawn) <= 80


def test_queries_that_are_documents_and_titles(tiny: SentenceTransformer) -> None:
    tiny.prompts = dict(PROMPTS)
    task = search.LocalRetrieval()
    task.load_data()
    data = task.dataset["default"]["test"]
    judged = [query for query in data["queries"] if data["relevant_docs"].get(query["id"])]
    seen = seen_by_the_grid(tiny, task)
    assert set(seen) == texts(judged, PROMPTS["query"]) | texts(data["corpus"], PROMPTS["document"])


def test_a_corpus_in_chunks(tiny: SentenceTransformer) -> None:
    """Copies of a document in another chunk may be embedded again."""
    tiny.prompts = dict(PROMPTS)
    task = search.LocalRetrieval()
    task.load_data()
    corpus = list(task.dataset["default"]["test"]["corpus"])
    copies = Counter(PROMPTS["document"] + f"{row['title']} {row['text']}".strip() for row in corpus)
    seen = seen_by_the_grid(tiny, task, corpus_chunk_size=np.int64(7), batch_size=np.int64(4))
    for text, count in seen.items():
        assert 1 <= count <= copies.get(text, 1)
    assert set(copies) <= set(seen)


def test_precisions_need_no_further_embedding(tiny: SentenceTransformer) -> None:
    tiny.prompts = dict(PROMPTS)
    for make_task in (search.FewResults, labels.BinaryClassification):
        seen = seen_by_the_grid(tiny, make_task(), sizes=[Size(4, 32)], precisions=["float32", "int8", "binary"])
        assert set(seen.values()) == {1}
