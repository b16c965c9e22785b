"""An evaluation embeds each text once per prompt for any number of sizes, and leaves no state behind."""

from __future__ import annotations

import gc
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

import mteb
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, evaluate, truncate
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.evaluation.embedding_cache import Memo
from st_matryoshka2d.evaluation.embeddings import Embeddings, TextEncoder
from st_matryoshka2d.evaluation.mteb_adapter import VariantModel
from st_matryoshka2d.evaluation.search import TaskSearch
from st_matryoshka2d.evaluation.variants import Variant
from tests.support import labels, search
from tests.support.quick import quick
from tests.support.sts import AsymmetricSTS, LocalSTS, OtherSTS, metadata, quiet, read_along
from tests.support.task_types import MakeTask, marks, oracle

pytestmark = marks


def test_texts_are_batched_by_tokens(minilm: SentenceTransformer) -> None:
    texts = ["internationalization " * 4, "a b c d e f g h " * 4, "it is as it is " * 3, "ox", "extraordinarily"]
    tokens = [len(minilm.tokenizer(text)["input_ids"]) for text in texts]
    assert sorted(texts, key=len, reverse=True) != [
        text for _, text in sorted(zip(tokens, texts, strict=True), reverse=True)
    ]
    batches: list[int] = []

    class Recorded(EveryLayer):
        def forward(self, input: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
            batches.append(input["input_ids"].shape[1])
            return super().forward(input, **kwargs)

    every = EveryLayer.of(minilm, [1, 6])
    every.__class__ = Recorded
    embeddings = every.encode(texts, batch_size=1)
    assert batches == sorted(tokens, reverse=True)
    for row, text in zip(embeddings, texts, strict=True):
        np.testing.assert_allclose(every.split(row, Size(6, 384)), minilm.encode(text), atol=1e-6)


def test_embeddings_of_a_task_are_freed_before_the_next(tiny: SentenceTransformer) -> None:
    alive: list[int] = []

    class Watching(OtherSTS):
        def load_data(self, *args: Any, **kwargs: Any) -> None:
            alive.append(sum(type(thing) is Memo for thing in gc.get_objects()))
            super().load_data(*args, **kwargs)

    variant = Variant(Size(1, 8))
    search = TaskSearch(Embeddings(TextEncoder(tiny, [1])), [variant])
    mteb.evaluate(VariantModel(search, variant), LocalSTS(), cache=None, co2_tracker=False, show_progress_bar=False)
    assert sum(type(thing) is Memo for thing in gc.get_objects()) == 1
    del search
    quiet(tiny, [LocalSTS(), Watching()], sizes=[Size(1, 8)])
    assert alive == [0]


def test_data_is_loaded_once_and_restored(tiny: SentenceTransformer) -> None:
    fresh, loaded = LocalSTS(), OtherSTS()
    loaded.load_data()
    quiet(tiny, [fresh, loaded], num_layers=[1, 2], dims=8)
    assert (fresh.loads, fresh.data_loaded, fresh.dataset) == (1, False, None)
    assert (loaded.loads, loaded.data_loaded) == (1, True)
    assert loaded.dataset is not None


@pytest.mark.parametrize("training", [True, False])
def test_leaves_model_unchanged(tiny: SentenceTransformer, training: bool) -> None:
    tiny.train(training)
    tiny[0].eval()
    tiny.prompts = {"query": "the old ", "document": "a "}

    def state() -> list[object]:
        settings = (tiny.truncate_dim, tiny.max_seq_length, dict(tiny.prompts), tiny.similarity_fn_name)
        return [cast("Any", tiny.config).to_dict(), [module.training for module in tiny.modules()], settings]

    def hooks() -> list[int]:
        return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in tiny.modules()]

    before, weights = state(), {name: value.clone() for name, value in tiny.state_dict().items()}
    quiet(tiny, LocalSTS(), sizes=[Size(2, 8), Size(4, 32)])
    assert state() == before
    assert all(torch.equal(value, weights[name]) for name, value in tiny.state_dict().items())
    # transformers adds one hook per block when hidden states are first requested; there must be no
    # more
    once = hooks()
    quiet(tiny, LocalSTS(), sizes=[Size(2, 8), Size(4, 32)])
    assert hooks() == once


def test_progress_and_warnings(tiny: SentenceTransformer, capfd: pytest.CaptureFixture[str]) -> None:
    quiet(tiny, LocalSTS(), sizes=[Size(1, 8), Size(4, 32)])
    assert "STS13" not in capfd.readouterr().err
    evaluate(tiny, LocalSTS(), sizes=[Size(1, 8), Size(4, 32)])
    assert re.search(r"STS13: 100%.*2/2", capfd.readouterr().err)


def test_superseded_task_warns_once(tiny: SentenceTransformer, caplog: pytest.LogCaptureFixture) -> None:
    class Old(LocalSTS):
        metadata = metadata("STSBenchmark").model_copy(update={"superseded_by": "STSBenchmark.v2"})

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # as in a user's process
        quiet(tiny, Old(), num_layers=[1, 2], dims=[8, 16])
    assert sum("superseded" in record.message for record in caplog.records) == 1
    assert sum("superseded" in str(warning.message) for warning in caught) == 1


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
