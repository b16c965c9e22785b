"""What `SizesEncoder` and `encode_to_parquet` refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import SizesEncoder, encode_to_parquet

Call = Callable[[SentenceTransformer, Path], object]
LINES = ["a cat"] * 9


def made(**given: Any) -> Call:
    return lambda model, folder: SizesEncoder(**{"model": model, "sizes": ["1L-8d", "4L-32d"], **given})


def given_batch(batch: Any) -> Call:
    return lambda model, folder: SizesEncoder(model, ["1L-8d", "4L-32d"])(batch)


def written(texts: Any, **given: Any) -> Call:
    return lambda model, folder: encode_to_parquet(model, texts, folder, ["1L-8d"], **{"shard_size": 5, **given})


REFUSED: list[tuple[Call, type[Exception], str]] = [
    # Encoders.
    (made(model=3), TypeError, "int"),
    (made(model="/nowhere"), FileNotFoundError, "nowhere"),
    (made(sizes=["9L-8d"]), ValueError, "9L-8d has 9 layers, but the model has 4"),
    (made(sizes=[]), ValueError, "sizes is empty"),
    (made(columns=["a"]), ValueError, r"columns must be 2 different names.*got \['a'\]"),
    (made(columns=["a", "a"]), ValueError, "columns must be 2 different names"),
    (made(columns=["text", "b"]), ValueError, "none of them 'text'"),
    (made(device=["cpu", "cpu"]), ValueError, "works in one process on one device"),
    (made(pool={}), ValueError, "does not take"),
    (made(truncate_dim=8), ValueError, r"does not take \['truncate_dim'\]"),
    (made(bach_size=8), ValueError, "bach_size"),
    (made(prompt_name="nobody"), ValueError, "nobody"),
    # Batches.
    (given_batch({"body": ["a"]}), ValueError, r"There is no column 'text' to read texts from, only \['body'\]"),
    (given_batch({"text": ["a"], "1L-8d": [0]}), ValueError, "There already is a column '1L-8d'"),
    (given_batch({"text": ["a", None]}), TypeError, "Row 1 of column 'text' is None"),
    (given_batch(pd.DataFrame({"text": ["a", None]})), TypeError, "Row 1 of column 'text' is nan"),
    (given_batch({"text": "a text"}), TypeError, "got one string"),
    (given_batch({"text": ["a \ud83d cat"]}), ValueError, "Row 0 of column 'text': character 2 of the text"),
    (given_batch(["a"]), TypeError, "A batch must be a dict of columns, a pandas DataFrame.*got a list"),
    # Corpora.
    (written("a text"), TypeError, "texts must be a list of texts, got one string"),
    (written(pd.DataFrame({"text": LINES})), TypeError, r"got a DataFrame.(.|\n)*Dataset.from_pandas\(frame\)"),
    (written(DatasetDict({"train": Dataset.from_dict({"text": LINES})})), TypeError, "or a split"),
    (written(Dataset.from_dict({"body": LINES})), ValueError, "There is no column 'text' to read texts from"),
    (written([*LINES[:7], None]), TypeError, r"Row 2 of column 'text' is None(.|\n)*The shard starts at row 5"),
    (written(Dataset.from_dict({"text": [*LINES[:7], None]})), TypeError, r"Row 2 of column(.|\n)*starts at row 5"),
    (written([]), ValueError, "There is no text to embed"),
    (written(LINES, shard_size=0), ValueError, "shard_size must be 1 or more, got 0"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_refused(call: Call, error: type[Exception], words: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(error, match=words):
        call(tiny, tmp_path)
