"""Batches of every type get the embeddings of `encode_sizes`: in this process by the model as it is now, in a worker as
it was when the encoder was pickled.
"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize

from st_matryoshka2d import Size, SizesEncoder, align, encode_sizes, truncate
from st_matryoshka2d.corpora import sizes_encoder
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from tests.support import families
from tests.support.families import TEXTS
from tests.support.pipelines import turned

SIZES = ["1L-8d", "4L-32d"]


@pytest.fixture
def folder(tiny: SentenceTransformer, tmp_path: Path) -> str:
    tiny.save_pretrained(str(tmp_path / "tiny"))
    return str(tmp_path / "tiny")


def arrays(batch: Any, column: str) -> np.ndarray:
    values = batch[column]
    return np.stack(values.to_pylist() if hasattr(values, "to_pylist") else list(values))


KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dict of lists": dict,
    "dict of arrays": lambda columns: {name: np.array(column) for name, column in columns.items()},
    "pandas": partial(pd.DataFrame, index=[7, 3, 1, 0, 9]),
    "table": pa.table,
    "record batch": pa.record_batch,
    "chunked": lambda columns: pa.concat_tables([pa.table(columns).slice(0, 2), pa.table(columns).slice(2)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_adds_column_per_size_to_any_batch(kind: str, tiny: SentenceTransformer) -> None:
    encoder = SizesEncoder(tiny, SIZES, text="line", columns=["small", "whole"], batch_size=2)
    batch = KINDS[kind]({"id": [1, 2, 3, 4, 5], "line": TEXTS})
    encoded = encoder(batch)
    assert isinstance(encoded, type(batch))
    names = encoded.schema.names if hasattr(encoded, "schema") else list(encoded)
    assert list(names) == ["id", "line", "small", "whole"]
    wanted = encode_sizes(tiny, TEXTS, SIZES, batch_size=2)
    for name, size in encoder.columns.items():
        vectors = arrays(encoded, name)
        np.testing.assert_array_equal(vectors, wanted[size])
        assert vectors.dtype == np.float32 or kind not in ("dict of lists", "dict of arrays", "pandas")
        np.testing.assert_allclose(vectors, truncate(tiny, size).encode(TEXTS), atol=1e-6)
    if kind == "pandas":
        assert encoded.index.tolist() == [7, 3, 1, 0, 9]
    if kind in ("table", "record batch", "chunked"):
        assert encoded.schema.field("small").type == pa.list_(pa.float32(), 8)
    # the input batch is unchanged
    assert "small" not in (batch.schema.names if hasattr(batch, "schema") else batch)


def test_reads_iterator_of_batches_lazily(tiny: SentenceTransformer) -> None:
    read: list[int] = []

    def batches() -> Any:
        for number in range(3):
            read.append(number)
            yield pd.DataFrame({"text": TEXTS})

    encoded = SizesEncoder(tiny, SIZES)(batches())
    assert len(next(encoded)) == 5
    assert read == [0]
    assert len(list(encoded)) == 2


def test_a_data_set_is_mapped(tiny: SentenceTransformer) -> None:
    mapped = Dataset.from_dict({"text": TEXTS}).map(SizesEncoder(tiny, SIZES), batched=True, batch_size=5)
    np.testing.assert_allclose(mapped["1L-8d"], encode_sizes(tiny, TEXTS, SIZES)[Size(1, 8)], atol=1e-6)


def test_an_empty_batch_has_empty_columns(tiny: SentenceTransformer) -> None:
    encoder = SizesEncoder(tiny, SIZES)
    assert encoder({"text": []})["1L-8d"].shape == (0, 8)
    assert encoder(pa.table({"text": pa.array([], pa.string())})).schema.field("4L-32d").type == pa.list_(pa.float32(), 32)


def test_normalizes_after_truncation(tiny: SentenceTransformer) -> None:
    encoder = SizesEncoder(tiny, SIZES, normalize_embeddings=True)
    wanted = encode_sizes(tiny, TEXTS, SIZES, normalize_embeddings=True)
    for name, vectors in encoder.encode(TEXTS).items():
        np.testing.assert_array_equal(vectors, wanted[Size.parse(name)])


def test_aligned_model_uses_readouts(tiny: SentenceTransformer, tmp_path: Path) -> None:
    aligned = turned(align(tiny, TEXTS))
    aligned.save_pretrained(str(tmp_path / "aligned"))
    wanted = encode_sizes(aligned, TEXTS, SIZES)
    for model in (aligned, str(tmp_path / "aligned")):
        encoder = pickle.loads(pickle.dumps(SizesEncoder(model, SIZES)))
        for name, vectors in encoder.encode(TEXTS).items():
            np.testing.assert_allclose(vectors, wanted[Size.parse(name)], atol=1e-6)


def test_encoder_of_folder_pickles_only_its_path(folder: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    encoder = SizesEncoder("tiny", SIZES)
    sent = pickle.dumps(encoder)
    assert len(sent) < 2000
    monkeypatch.chdir("/")  # workers start in another folder
    for name, vectors in pickle.loads(sent).encode(TEXTS).items():
        np.testing.assert_array_equal(vectors, encoder.encode(TEXTS)[name])


def test_copies_load_model_once_per_process(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = SizesEncoder(folder, SIZES)
    loads: list[str] = []
    load = sizes_encoder.load
    monkeypatch.setattr(sizes_encoder, "load", lambda path, **kwargs: loads.append(path) or load(path, **kwargs))
    for _ in range(3):  # like three tasks of an engine
        pickle.loads(pickle.dumps(encoder)).encode(TEXTS)
    assert loads == [folder]
    for _ in range(6):
        pickle.loads(pickle.dumps(SizesEncoder(folder, SIZES))).encode(TEXTS)
    assert sizes_encoder._in_this_process.cache_info().currsize <= 4


def test_worker_refuses_changed_model(folder: str, tiny: SentenceTransformer) -> None:
    sent = pickle.dumps(SizesEncoder(folder, SIZES))
    next(tiny.parameters()).data += 1
    tiny.save_pretrained(folder)
    with pytest.raises(ValueError, match=r"holds another model here than where the SizesEncoder was made"):
        pickle.loads(sent).encode(TEXTS)


SIZE = "3L-8d"


def train(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(model.preprocess(TEXTS))["sentence_embedding"].square().sum().backward()
    optimizer.step()


def add_token(model: Any) -> None:
    model.tokenizer.add_tokens(["cat sat"])  # in a spare row of the vocabulary
    model[0].model.resize_token_embeddings(len(model.tokenizer))


def default_prompt(model: Any) -> None:
    model.prompts["query"] = "the old "
    model.default_prompt_name = "query"


CHANGES: dict[str, Callable[[Any], object]] = {
    "a training step": train,
    "data written": lambda model: [weight.data.mul_(1.1) for weight in model.parameters()],  # torch counts no version
    "data replaced": lambda model: [setattr(weight, "data", weight.data * 1.1) for weight in model.parameters()],
    "state loaded": lambda model: model.load_state_dict({k: 1.1 * v for k, v in model.state_dict().items()}, assign=True),
    "half precision": lambda model: model.bfloat16(),
    "a new token": add_token,
    "max_seq_length": lambda model: setattr(model, "max_seq_length", 4),
    "a default prompt": default_prompt,
    "the prompt left out": lambda model: (default_prompt(model), model.set_pooling_include_prompt(False)),
    "length one": lambda model: model.append(Normalize()),
}


def embedded(model: SentenceTransformer) -> NDArray[np.float32]:
    """What a cut of a copy gives, without an encoder."""
    return truncate(copy.deepcopy(model), SIZE).encode(TEXTS)


def column(encoder: SizesEncoder) -> NDArray[np.float32]:
    return encoder.encode(TEXTS)[SIZE]


def in_a_worker(sent: bytes) -> NDArray[np.float32]:
    """As a process that has run other encoders, or copies of this one, does with a task."""
    return column(pickle.loads(sent))


@pytest.mark.parametrize("what", CHANGES)
def test_the_vectors_are_those_of_the_model_when_it_was_pickled(what: str, tiny: SentenceTransformer) -> None:
    encoder = SizesEncoder(tiny, [SIZE])
    before, revision, sent = embedded(tiny), encoder.revision, pickle.dumps(encoder)
    copied = copy.deepcopy(encoder)
    np.testing.assert_allclose(in_a_worker(sent), before, atol=1e-6)
    np.testing.assert_allclose(column(encoder), before, atol=1e-6)
    CHANGES[what](tiny)
    after, sent_after = embedded(tiny), pickle.dumps(encoder)
    assert np.abs(after.astype(np.float32) - before).max() > 1e-3
    np.testing.assert_allclose(in_a_worker(sent_after), after, atol=1e-6)
    np.testing.assert_allclose(column(encoder), after, atol=1e-6)
    # an older task that comes later, and a copy, which does not follow the model
    np.testing.assert_allclose(in_a_worker(sent), before, atol=1e-6)
    np.testing.assert_allclose(column(copied), before, atol=1e-6)
    assert encoder.revision != revision
    assert [pickle.loads(pickled).revision for pickled in (sent, sent_after)] == [revision, encoder.revision]


def test_a_worker_makes_an_unchanged_model_once(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = SizesEncoder(tiny, [SIZE])
    models: list[object] = []
    of = EveryLayer.of
    monkeypatch.setattr(EveryLayer, "of", lambda model, depths: models.append(model) or of(model, depths))
    for _ in range(3):
        in_a_worker(pickle.dumps(encoder))
    assert len(models) <= 1  # none if an earlier test had a model like this one


def test_a_process_pool_does_not_share_the_models_memory(tiny: SentenceTransformer) -> None:
    """The pickler of `multiprocessing` moves tensors into shared memory, where training would change a worker's weights."""
    ForkingPickler.dumps(SizesEncoder(tiny, [SIZE]))
    assert not any(weight.is_shared() for weight in tiny.parameters())


@pytest.mark.slow
def test_a_pool_of_processes_follows_training(tiny: SentenceTransformer) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        encoder = SizesEncoder(tiny, [SIZE])
        for _ in range(3):
            np.testing.assert_allclose(pool.apply(encoder, ({"text": TEXTS},))[SIZE], embedded(tiny), atol=1e-6)
            train(tiny)


def test_threads_share_an_encoder(tiny: SentenceTransformer) -> None:
    encoder = SizesEncoder(tiny, [SIZE])
    wanted = {text: vector for text, vector in zip(TEXTS, embedded(tiny), strict=True)}
    with ThreadPoolExecutor(8) as threads:
        pairs = list(threads.map(lambda text: (text, encoder.encode([text])[SIZE][0]), TEXTS * 8))
    for text, vector in pairs:
        np.testing.assert_allclose(vector, wanted[text], atol=1e-6)


def test_a_family_without_shared_layers(tmp_path: Any) -> None:
    """ALBERT repeats one block, so the depth is only in its config."""
    albert = families.pipeline(families.CONFIGS["albert"](), tmp_path, "mean", dense=None, normalize=False)
    encoder = SizesEncoder(albert, [SIZE])
    train(albert)
    np.testing.assert_allclose(in_a_worker(pickle.dumps(encoder)), embedded(albert), atol=1e-6)
