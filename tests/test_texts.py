"""Texts before a model runs: what is read as texts, and what is refused or left out, the same by every verb."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import (
    DataWarning,
    Size,
    SizesEncoder,
    align,
    benchmark_latency,
    classification_task,
    encode_sizes,
    encode_to_parquet,
    pair_task,
    retrieval_task,
    sts_task,
)
from st_matryoshka2d.evaluation.coordinate_spread import coordinate_spread
from st_matryoshka2d.evaluation.truncations import PCA
from st_matryoshka2d.pretraining.tokens import token_rows
from st_matryoshka2d.texts import LeftOut, strings
from tests.support import tokenizers
from tests.support.families import TEXTS, WORDS
from tests.support.pipelines import TEXTS as LINES
from tests.support.sts import LocalSTS, quiet

MANY = [f"{first} {second}" for first in WORDS for second in WORDS[:4]]

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
    "PCA.fit": lambda model, texts, folder: PCA.fit(model, texts, Size(1, 32)),
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
    "string": ("a text", "must be a list of texts, got one string: pass"),
    "bytes": (b"a text", "got one string"),
    "dict": ({"text": TEXTS}, "one column of a table, got a dict"),
    "frame": (pd.DataFrame({"text": TEXTS}), r"one column of a table, got a DataFrame. Choose a column.*table\['text'\]"),
    "pyarrow table": (pa.table({"text": TEXTS}), "got a Table"),
    "splits": (DatasetDict({"train": Dataset.from_dict({"text": TEXTS})}), "got a DatasetDict"),
    "data set": (Dataset.from_dict({"text": TEXTS}), r"got a Dataset. Choose a column"),
    "matrix": (np.array([TEXTS, TEXTS]), "got a ndarray"),
    "number": (3, "got a int"),
    "pairs": ([("a", "b")], "0.* is .*tuple"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_every_verb_refuses_tables_and_rows_without_text(what: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    given, told = REFUSED[what]
    for name, verb in VERBS.items():
        if (name, what) in (("align", "dict"), ("align", "splits"), ("encode_to_parquet", "data set")):
            continue  # which take a dict from prompts to texts, and a data set with all its columns
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
    with pytest.warns(DataWarning, match=r"texts: 2 of 90 are empty and are left out: 0, 89"):
        VERBS[verb](tiny, [" ", *MANY, None], tmp_path)


BROKEN = "a \ud83d cat"
LABELLED = {"text": ["a", "b"], "label": ["x", "y"]}

PLACES: dict[str, tuple[Callable[[SentenceTransformer], Any], str]] = {
    "encode_sizes": (lambda model: encode_sizes(model, ["a", BROKEN], ["1L-8d"]), r"texts\[1\]"),
    "pairs": (
        lambda _: sts_task({"sentence1": ["a", "b"], "sentence2": ["c", BROKEN], "score": [1, 2]}),
        "row 1, sentence2",
    ),
    "corpus": (lambda _: retrieval_task({"d1": "a", "d2": BROKEN}, {"q": "q"}, {"q": ["d1"]}), "corpus, id 'd2', text"),
    "title": (
        lambda _: retrieval_task({"d": {"title": BROKEN, "text": "a"}}, {"q": "q"}, {"q": ["d"]}),
        "corpus, id 'd', title",
    ),
    "queries": (lambda _: retrieval_task({"d": "a"}, {"q": BROKEN}, {"q": ["d"]}), "queries, id 'q', text"),
    "id": (lambda _: retrieval_task({BROKEN: "a"}, {"q": "q"}, {"q": [BROKEN]}), "corpus, row 0, id"),
    "text": (lambda _: classification_task({**LABELLED, "text": ["a", BROKEN]}, LABELLED), "train, row 1, text"),
    "label": (lambda _: classification_task(LABELLED, {**LABELLED, "label": ["x", BROKEN]}), "test, row 1, label"),
}


@pytest.mark.parametrize("what", PLACES)
def test_half_of_a_surrogate_pair_is_refused(what: str, tiny: SentenceTransformer) -> None:
    call, place = PLACES[what]
    with pytest.raises(ValueError, match=f"{place}: character 2 of the text 'a .ud83d cat'.* is half of a surrogate pair"):
        call(tiny)
    assert strings(["a \U0001f408 cat"]), "a whole pair is a character"


def test_task_with_lone_surrogate_is_refused(tiny: SentenceTransformer) -> None:
    class Lists(LocalSTS):
        """Data in lists: Arrow itself would refuse the text."""

        def load_data(self, *args: Any, **kwargs: Any) -> None:
            super().load_data()
            self.dataset["one"]["test"] = Dataset.from_dict({"sentence1": [BROKEN]})  # type: ignore[index]

    with pytest.raises(ValueError, match=r"STS13: character 2 of the text 'a .ud83d cat' is half of a surrogate pair"):
        quiet(tiny, Lists(), sizes=[Size(1, 8)])


EMPTY = [None, float("nan"), "", " \n"]  # in rows 2, 5, 8, 11 of MESSY, and at the end
MESSY: list[Any] = [*LINES[:2], None, *LINES[2:4], np.nan, *LINES[4:6], "", *LINES[6:8], " \n", *LINES[8:], None, None]
ROWS = [row for row, text in enumerate(MESSY) if not isinstance(text, str) or not text.strip()]
TOLD = f"{len(ROWS)} of {len(MESSY)} are empty and are left out: 2, 5, 8, 11, {ROWS[4]}, ... (counted from 0)"
OF_ROWS = TOLD.replace("are empty", "rows have an empty cell").removesuffix(" (counted from 0)")


def warned(call: Callable[[], Any], told: str) -> Any:
    """Call and return; the call must warn exactly once of rows, with these words, at this file."""
    with pytest.warns(DataWarning) as warnings:
        result = call()
    of_rows = [warning for warning in warnings if "and are left out" in str(warning.message)]
    assert len(of_rows) == 1
    assert told in str(of_rows[0].message)
    assert of_rows[0].filename == __file__
    return result


def test_align_leaves_out_empty_texts(tiny: SentenceTransformer) -> None:
    aligned = warned(lambda: align(tiny, MESSY), f"texts: {TOLD}")
    with pytest.warns(DataWarning, match="too few"):
        expected = align(tiny, LINES)
    for name, weight in expected.state_dict().items():
        assert weight.equal(aligned.state_dict()[name]), name


def test_latency_leaves_out_empty_texts(tiny: SentenceTransformer) -> None:
    times = warned(lambda: benchmark_latency(tiny, [1], MESSY, rounds=1), f"texts: {TOLD}")
    assert list(times["milliseconds"] / times["milliseconds_per_text"]) == pytest.approx([len(LINES)] * 2)


@pytest.mark.parametrize("hold", [dict, pd.DataFrame, lambda rows: Dataset.from_pandas(pd.DataFrame(rows))])
def test_tasks_leave_out_rows_with_empty_cells(hold: Callable[[dict[str, list[Any]]], Any]) -> None:
    full = list(map(str, range(len(MESSY))))
    pairs = hold({"sentence1": MESSY, "sentence2": full, "score": [float(row) for row in range(len(MESSY))]})
    task = warned(lambda: sts_task(pairs), f"pairs: {OF_ROWS}")
    assert task.dataset["test"]["sentence2"] == [name for row, name in enumerate(full) if row not in ROWS]
    labels = ["a", "b"] * (len(MESSY) // 2) + ["a"] * (len(MESSY) % 2)
    test = {"text": ["one", "two"], "label": ["a", "b"]}
    task = warned(lambda: classification_task(hold({"text": MESSY, "label": labels}), test), f"train: {OF_ROWS}")
    assert set(task.dataset["train"]["text"]) == set(LINES)


@pytest.mark.parametrize("empty", EMPTY)
def test_rows_without_a_score_or_label_are_left_out(empty: Any) -> None:
    told = "1 of 3 rows have an empty cell and are left out: 1 (counted from 0)"
    task = warned(lambda: sts_task({"sentence1": list("abc"), "sentence2": list("xyz"), "score": [1, empty, 3]}), told)
    assert task.dataset["test"]["score"] == [1, 3]
    pairs = {"sentence1": list("abc"), "sentence2": list("xyz"), "label": [1, empty, 0]}
    assert warned(lambda: pair_task(pairs), told).dataset["test"]["label"] == [1, 0]
    train = {"text": list("abc") * 8, "label": ["x", "y", "x"] * 8}
    test = {"text": ["one", "two", "three"], "label": ["x", empty, "y"]}
    assert warned(lambda: classification_task(train, test), f"test: {told}").dataset["test"]["text"] == ["one", "three"]


def test_scores_may_be_texts_with_words_for_no_score() -> None:
    """As pandas reads them with `keep_default_na=False`: one empty cell makes texts of a whole column."""
    pairs = {"sentence1": list("abcde"), "sentence2": list("vwxyz"), "score": ["4", "", "0.5", "NaN", "-1e-1"]}
    told = "pairs: 2 of 5 rows have an empty cell and are left out: 1, 3 (counted from 0)."
    with pytest.warns(DataWarning) as warnings:
        task = sts_task(pairs)
    assert [str(warning.message) for warning in warnings] == [told]
    assert task.dataset["test"]["score"] == [4, 0.5, -0.1]
    with pytest.raises(ValueError, match=r"row 2, score: .* 'good'"):
        sts_task({**pairs, "score": ["4", "", "good", "3", "2"]})


def test_a_table_without_a_filled_row_is_refused() -> None:
    with pytest.warns(DataWarning, match="2 of 2 rows"), pytest.raises(ValueError, match="pairs has no row with all cells"):
        sts_task({"sentence1": ["a", None], "sentence2": ["", "b"], "score": [1, 2]})


def test_a_search_names_all_rows_without_a_text() -> None:
    """Judgments name ids, so no row may be left out."""
    documents, queries = {"d1": "one", "d2": None, "d3": np.nan}, {"q1": "first", "q2": "", "q3": None}
    with pytest.raises(ValueError, match=r"corpus, id 'd2', text: .* None.* 'd3'"):
        retrieval_task(documents, {"q1": "first"}, {"q1": ["d1"]})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"queries, id 'q2', text: .* ''.* 'q3'"):
        retrieval_task({"d1": "one"}, queries, {"q1": ["d1"]})  # type: ignore[arg-type]


def test_pretraining_leaves_out_empty_texts() -> None:
    tokenizer = tokenizers.wordpiece()
    texts = Dataset.from_dict({"text": ["the fox", None, "", " ", "fox"]})
    told = "olumn 'text': 3 of 5 rows have an empty cell and are left out: 1, 2, 3 (counted from 0)"
    rows = warned(lambda: token_rows(texts, tokenizer), told)
    assert list(rows["input_ids"]) == [tokenizer(text)["input_ids"] for text in ("the fox", "fox")]
    stream = token_rows(texts.to_iterable_dataset(), tokenizer)
    with pytest.warns(DataWarning, match=re.escape(told)):
        assert [row["input_ids"] for row in stream] == list(rows["input_ids"])


@pytest.mark.filterwarnings("error")
def test_full_tables_say_nothing() -> None:
    left_out = LeftOut("texts")
    assert not any(map(left_out.lacks, ["NA", "null", "0", 0, False]))
    left_out.tell()
