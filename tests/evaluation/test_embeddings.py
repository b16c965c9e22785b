"""An evaluation embeds each text once and leaves no state behind."""

from __future__ import annotations

import gc
import logging
import re
import warnings
from collections import Counter
from typing import Any, cast

import mteb
import numpy as np
import pytest
import torch
from mteb.models import CompressionWrapper
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, evaluate
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.evaluation.embeddings import Embeddings, TextEncoder
from st_matryoshka2d.evaluation.memo import Memo
from st_matryoshka2d.evaluation.mteb_adapter import VariantModel
from st_matryoshka2d.evaluation.search import TaskSearch
from st_matryoshka2d.evaluation.variants import Variant, quantise
from tests.support.sts import LocalSTS, OtherSTS, cells_of_mteb, metadata, quiet, read_along


def counts(seen: Counter[str], texts: set[str]) -> set[int]:
    return {seen[text] for text in texts}


def test_each_text_goes_through_the_model_once(tiny: SentenceTransformer) -> None:
    task = LocalSTS()
    task.load_data()
    seen = read_along(tiny)
    sizes: dict[str, Any] = {"num_layers": [1, 4], "dims": [8, 32]}
    quiet(tiny, task, **sizes)
    assert counts(seen, task.texts()) == {1}
    quiet(tiny, task, **sizes)
    assert counts(seen, task.texts()) == {2}
    cells_of_mteb(tiny, task)
    assert max(seen[text] for text in task.texts()) > 4  # the counter counts repeated texts


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


def test_int8_of_few_texts_does_not_warn(caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder) -> None:
    logger = logging.getLogger(CompressionWrapper.__module__)
    before = logger.level
    with caplog.at_level(logging.INFO):
        quantise(torch.randn(5, 4), "int8")
    assert (caplog.records, list(recwarn), logger.level) == ([], [], before)
