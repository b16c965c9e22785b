"""Messy tables: every verb leaves out rows with an empty cell, counts them and names the first few, in one warning."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import DataWarning, align, benchmark_latency, classification_task, pair_task, retrieval_task, sts_task
from st_matryoshka2d.encoding.texts import LeftOut
from st_matryoshka2d.pretraining.tokens import token_rows
from tests.support import tokenizers
from tests.support.pipelines import TEXTS

EMPTY = [None, float("nan"), "", " \n"]  # in rows 2, 5, 8, 11 of MESSY, and at the end
MESSY: list[Any] = [*TEXTS[:2], None, *TEXTS[2:4], np.nan, *TEXTS[4:6], "", *TEXTS[6:8], " \n", *TEXTS[8:], None, None]
ROWS = [row for row, text in enumerate(MESSY) if not isinstance(text, str) or not text.strip()]
TOLD = f"{len(ROWS)} of {len(MESSY)} rows have an empty cell and are left out: 2, 5, 8, 11, {ROWS[4]}, ... (counted from 0)"


def warned(call: Callable[[], Any], told: str) -> Any:
    """Call and return; the call must warn exactly once of rows, with these words, at this file."""
    with pytest.warns(DataWarning) as found:
        result = call()
    of_rows = [warning for warning in found if "left out" in str(warning.message) and "rows" in str(warning.message)]
    assert len(of_rows) == 1
    assert told in str(of_rows[0].message)
    assert of_rows[0].filename == __file__
    return result


def test_align_leaves_out_empty_texts(tiny: SentenceTransformer) -> None:
    made = warned(lambda: align(tiny, MESSY), f"texts: {TOLD}")
    with pytest.warns(DataWarning, match="too few"):
        expected = align(tiny, TEXTS)
    for name, weight in expected.state_dict().items():
        assert weight.equal(made.state_dict()[name]), name


def test_latency_leaves_out_empty_texts(tiny: SentenceTransformer) -> None:
    times = warned(lambda: benchmark_latency(tiny, [1], MESSY, rounds=1), f"texts: {TOLD}")
    assert list(times["milliseconds"] / times["milliseconds_per_text"]) == pytest.approx([len(TEXTS)] * 2)


@pytest.mark.parametrize("hold", [dict, pd.DataFrame, lambda rows: Dataset.from_pandas(pd.DataFrame(rows))])
def test_tasks_leave_out_rows_with_empty_cells(hold: Callable[[dict[str, list[Any]]], Any]) -> None:
    full = list(map(str, range(len(MESSY))))
    pairs = hold({"sentence1": MESSY, "sentence2": full, "score": [float(row) for row in range(len(MESSY))]})
    task = warned(lambda: sts_task(pairs), f"pairs: {TOLD}")
    assert task.dataset["test"]["sentence2"] == [name for row, name in enumerate(full) if row not in ROWS]
    labels = ["a", "b"] * (len(MESSY) // 2) + ["a"] * (len(MESSY) % 2)
    test = {"text": ["one", "two"], "label": ["a", "b"]}
    task = warned(lambda: classification_task(hold({"text": MESSY, "label": labels}), test), f"train: {TOLD}")
    assert set(task.dataset["train"]["text"]) == set(TEXTS)


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
    with pytest.warns(DataWarning) as found:
        task = sts_task(pairs)
    assert [str(warning.message) for warning in found] == [told]
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
    assert list(left_out.filled(["NA", "null", "0", 0, False])) == ["NA", "null", "0", 0, False]
    left_out.tell()
