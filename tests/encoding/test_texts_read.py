"""Every verb reads texts from the same kinds of lists and columns, and refuses the same others in the same words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import DataWarning, SizesEncoder, align, benchmark_latency, encode_sizes, encode_to_parquet
from st_matryoshka2d.encoding.texts import strings
from st_matryoshka2d.evaluation.coordinate_spread import coordinate_spread
from st_matryoshka2d.evaluation.truncations import PCA
from tests.support.families import TEXTS, WORDS

MANY = [f"{one} {two}" for one in WORDS for two in WORDS[:4]]

KINDS: dict[str, Callable[[list[str]], Any]] = {
    "tuple": tuple,
    "generator": iter,
    "dict view": lambda texts: dict.fromkeys(texts).keys(),
    "numpy": np.array,
    "pandas": pd.Series,
    "categories": lambda texts: pd.Series(texts, dtype="category"),
    "pyarrow": pa.array,
    "pyarrow large": lambda texts: pa.array(texts, pa.large_string()),
    "pyarrow dictionary": lambda texts: pa.array(texts).dictionary_encode(),
    "pyarrow chunked": lambda texts: pa.chunked_array([texts[:2], texts[2:]]),
    "data set": lambda texts: Dataset.from_dict({"text": texts})["text"],
    "streamed data set": lambda texts: Dataset.from_dict({"text": texts}).to_iterable_dataset()["text"],
}

# Each is called with a model, texts and a folder.
VERBS: dict[str, Callable[[SentenceTransformer, Any, Path], Any]] = {
    "encode_sizes": lambda model, texts, folder: encode_sizes(model, texts, ["1L-8d"]),
    "SizesEncoder": lambda model, texts, folder: SizesEncoder(model, ["1L-8d"]).encode(texts),
    "encode_to_parquet": lambda model, texts, folder: encode_to_parquet(model, texts, folder, ["1L-8d"]),
    "align": lambda model, texts, folder: align(model, texts),
    "benchmark_latency": lambda model, texts, folder: benchmark_latency(model, 1, texts, rounds=1, show_progress_bar=False),
    "PCA.fit": lambda model, texts, folder: PCA.fit(model, texts, 1),
    "coordinate_spread": lambda model, texts, folder: coordinate_spread(model, texts),
}


@pytest.mark.parametrize("kind", KINDS)
def test_reads_any_column(kind: str) -> None:
    assert strings(KINDS[kind](TEXTS)) == TEXTS


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_reads_a_column_and_a_generator(verb: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    for number, kind in enumerate(["pyarrow chunked", "generator"]):
        assert VERBS[verb](tiny, KINDS[kind](MANY), tmp_path / str(number)) is not None


REFUSED: dict[str, tuple[Any, str]] = {
    "string": ("a text", "must be a list of texts, got one string; wrap it"),
    "bytes": (b"a text", "got one string"),
    "dict": ({"text": TEXTS}, "one column of a table, got a dict"),
    "frame": (pd.DataFrame({"text": TEXTS}), r"one column of a table, got a DataFrame. Choose a column.*table\['text'\]"),
    "pyarrow table": (pa.table({"text": TEXTS}), "got a Table"),
    "splits": (DatasetDict({"train": Dataset.from_dict({"text": TEXTS})}), "got a DatasetDict"),
    "matrix": (np.array([TEXTS, TEXTS]), "got a ndarray"),
    "number": (3, "got a int"),
    "pairs": ([("a", "b")], "0.* is .*tuple"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_every_verb_refuses_tables_and_rows_without_text(what: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    given, told = REFUSED[what]
    for name, verb in VERBS.items():
        if name == "align" and isinstance(given, dict):
            continue  # it takes a dict from prompts to texts
        with pytest.raises(TypeError, match=told):
            verb(tiny, given, tmp_path)


MISSING: dict[str, tuple[Any, str]] = {
    "None": ([*TEXTS, None], "5.* is None"),
    "missing in pyarrow": (pa.array([*TEXTS, None]), "5.* is None"),
    "NA": (pd.Series([*TEXTS, pd.NA], dtype=object), "5.* is <NA>"),
    "NaN": ([*TEXTS, float("nan")], r"5.* is nan \(float\), but every text must be a string. Remove or fill such rows"),
    "two": ([*TEXTS, None, float("nan")], "5.* is None"),
}


@pytest.mark.parametrize("what", MISSING)
def test_missing_texts_are_refused_where_each_row_has_a_result(what: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    given, told = MISSING[what]
    for verb in ("encode_sizes", "SizesEncoder", "encode_to_parquet"):
        with pytest.raises(TypeError, match=told):
            VERBS[verb](tiny, given, tmp_path)


@pytest.mark.parametrize("verb", ["align", "benchmark_latency", "PCA.fit", "coordinate_spread"])
def test_missing_texts_are_left_out_where_texts_are_only_looked_at(
    verb: str, tiny: SentenceTransformer, tmp_path: Path
) -> None:
    with pytest.warns(DataWarning, match=r"texts: 2 of 90 rows have an empty cell and are left out: 0, 89"):
        VERBS[verb](tiny, [" ", *MANY, None], tmp_path)


def test_a_data_set_is_a_table(tiny: SentenceTransformer, tmp_path: Path) -> None:
    data = Dataset.from_dict({"text": TEXTS})
    for name, verb in VERBS.items():
        if name != "encode_to_parquet":  # it keeps the other columns
            with pytest.raises(TypeError, match=r"got a Dataset. Choose a column"):
                verb(tiny, data, tmp_path)
