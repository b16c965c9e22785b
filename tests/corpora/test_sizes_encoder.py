"""Batches of every type get the embeddings of `encode_sizes`, in this process and from a pickled encoder."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, SizesEncoder, align, encode_sizes, truncate
from st_matryoshka2d.corpora import sizes_encoder
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
        found = arrays(encoded, name)
        np.testing.assert_array_equal(found, wanted[size])
        assert found.dtype == np.float32 or kind not in ("dict of lists", "dict of arrays", "pandas")
        np.testing.assert_allclose(found, truncate(tiny, size).encode(TEXTS), atol=1e-6)
    if kind == "pandas":
        assert encoded.index.tolist() == [7, 3, 1, 0, 9]
    # the input batch is unchanged
    assert "small" not in (batch.schema.names if hasattr(batch, "schema") else batch)


def test_arrow_lists_have_a_fixed_length(tiny: SentenceTransformer) -> None:
    encoded = SizesEncoder(tiny, SIZES)(pa.table({"text": TEXTS}))
    assert encoded.schema.field("1L-8d").type == pa.list_(pa.float32(), 8)


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
    for name, found in encoder.encode(TEXTS).items():
        np.testing.assert_array_equal(found, wanted[Size.parse(name)])


def test_aligned_model_uses_readouts(tiny: SentenceTransformer, tmp_path: Path) -> None:
    aligned = turned(align(tiny, TEXTS))
    aligned.save_pretrained(str(tmp_path / "aligned"))
    wanted = encode_sizes(aligned, TEXTS, SIZES)
    for model in (aligned, str(tmp_path / "aligned")):
        encoder = pickle.loads(pickle.dumps(SizesEncoder(model, SIZES)))
        for name, found in encoder.encode(TEXTS).items():
            np.testing.assert_allclose(found, wanted[Size.parse(name)], atol=1e-6)


def test_encoder_of_folder_pickles_only_its_path(folder: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    encoder = SizesEncoder("tiny", SIZES)
    sent = pickle.dumps(encoder)
    assert len(sent) < 2000
    monkeypatch.chdir("/")  # workers start in another folder
    for name, found in pickle.loads(sent).encode(TEXTS).items():
        np.testing.assert_array_equal(found, encoder.encode(TEXTS)[name])


def test_encoder_of_model_pickles_weights(tiny: SentenceTransformer) -> None:
    encoder = SizesEncoder(tiny, ["1L-8d"])
    wanted = encoder.encode(TEXTS)["1L-8d"]
    sent = pickle.dumps(encoder)
    for weight in tiny.parameters():
        weight.data.zero_()
    received = pickle.loads(sent)
    np.testing.assert_array_equal(received.encode(TEXTS)["1L-8d"], wanted)
    assert received._model[0].auto_model.config.num_hidden_layers == 4


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


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "model": ({"model": 3}, TypeError, "int"),
    "size": ({"sizes": ["9L-8d"]}, ValueError, "9L-8d has 9 layers, but the model has 4"),
    "no size": ({"sizes": []}, ValueError, "sizes is empty"),
    "too few names": ({"columns": ["a"]}, ValueError, r"columns must be 2 different names.*got \['a'\]"),
    "twice a name": ({"columns": ["a", "a"]}, ValueError, "columns must be 2 different names"),
    "the texts' name": ({"columns": ["text", "b"]}, ValueError, "none of them 'text'"),
    "devices": ({"device": ["cpu", "cpu"]}, ValueError, "works in one process on one device"),
    "pool": ({"pool": {}}, ValueError, "does not take"),
    "truncate_dim": ({"truncate_dim": 8}, ValueError, r"does not take \['truncate_dim'\]"),
    "keyword": ({"bach_size": 8}, ValueError, "bach_size"),
    "prompt": ({"prompt_name": "nobody"}, ValueError, "nobody"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses_invalid_arguments(what: str, tiny: SentenceTransformer) -> None:
    given, error, told = REFUSED[what]
    with pytest.raises(error, match=told):
        SizesEncoder(**{"model": tiny, "sizes": SIZES, **given})


def test_refuses_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        SizesEncoder(str(tmp_path / "nowhere"), SIZES)


@pytest.mark.parametrize(
    ("batch", "error", "told"),
    [
        ({"body": ["a"]}, ValueError, r"There is no column 'text' to read texts from, only \['body'\]"),
        ({"text": ["a"], "1L-8d": [0]}, ValueError, "There already is a column '1L-8d'"),
        ({"text": ["a", None]}, TypeError, "Row 1 of column 'text' is None"),
        (pd.DataFrame({"text": ["a", None]}), TypeError, "Row 1 of column 'text' is nan"),
        ({"text": "a text"}, TypeError, "got one string; wrap it"),
        ({"text": ["a \ud83d cat"]}, ValueError, "Row 0 of column 'text': character 2 of the text"),
        (["a"], TypeError, "A batch must be a dict of columns, a pandas DataFrame.*got a list"),
    ],
)
def test_refuses_invalid_batches(batch: Any, error: type[Exception], told: str, tiny: SentenceTransformer) -> None:
    with pytest.raises(error, match=told):
        SizesEncoder(tiny, SIZES)(batch)
