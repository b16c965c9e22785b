"""What `fit_queries` refuses, where depth 0 has no use, and tables that cannot be read."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import (
    SizesEncoder,
    TruncatedTransformer,
    align,
    benchmark_latency,
    encode_sizes,
    encode_to_parquet,
    evaluate,
    fit_queries,
    load,
    sts_task,
    truncate,
)
from st_matryoshka2d.losses import MultiSizeLoss, RelationalDistillLoss
from tests.support.command_line import PAIRS
from tests.support.pipelines import KINDS, OTHERS, TEXTS, normalized, turned, with_one_river, without_words_for

pytestmark = pytest.mark.filterwarnings("ignore:This model was not aligned for")

Call = Callable[[SentenceTransformer, Path], object]


def fitted_on(texts: Any = TEXTS, **given: Any) -> Call:
    return lambda model, folder: fit_queries(model, texts, **given)


def beside(change: Callable[[Any], Any]) -> Call:
    """Pass changed embeddings of the model."""
    return lambda model, folder: fit_queries(model, TEXTS, embeddings=change(normalized(model).encode(TEXTS)))


def with_nan(model: SentenceTransformer, folder: Path) -> None:
    without_words_for(model, "river")
    fit_queries(model, ["", *with_one_river(7)])


def with_a_broken_query(model: SentenceTransformer, folder: Path) -> None:
    without_words_for(model, "river")
    fit_queries(model, [text.replace("river", "road") for text in TEXTS], queries=["a road", "a road", "a river"])


def file(write: Callable[[Path, Any], object], name: str) -> Call:
    def call(model: SentenceTransformer, folder: Path) -> None:
        write(folder / name, model.encode(TEXTS))
        fit_queries(model, TEXTS, embeddings=folder / name)

    return call


def uneven(path: Path, rows: Any) -> None:
    pd.DataFrame({"vector": [*rows[:-1], rows[-1][:8]]}).to_parquet(path)


def narrow_folder(model: SentenceTransformer, folder: Path) -> None:
    encode_to_parquet(model, TEXTS, folder, ["2L-8d"], show_progress_bar=False)
    fit_queries(model, TEXTS, embeddings=folder)


def saved_plain(model: SentenceTransformer, folder: Path) -> None:
    model.save_pretrained(str(folder))
    load(folder, num_layers=0)


REFUSED: list[tuple[Call, type[Exception], str]] = [
    (fitted_on(["one", "two", "one"]), ValueError, "3 .* 2"),
    (fitted_on("one"), TypeError, "documents"),
    (fitted_on(["one", 2, "three"]), TypeError, r"documents\[1\] is 2"),
    (lambda model, folder: fit_queries(KINDS["router"](copy.deepcopy(model), folder), TEXTS), ValueError, "Router"),
    (lambda model, folder: fit_queries(model[0].model, TEXTS), TypeError, "BertModel"),
    (lambda model, folder: fit_queries(truncate(model, dim=8), TEXTS), ValueError, "truncate_dim=8"),
    (with_nan, ValueError, r"'the red river', documents\[8\], is not finite"),
    (with_a_broken_query, ValueError, r"'a river', queries\[2\], is not finite"),
    (beside(lambda rows: rows[:, :8]), ValueError, r"32.* \(40, 8\)"),
    (beside(lambda rows: rows[:-1]), ValueError, "39"),
    (beside(lambda rows: np.concatenate([rows, rows[:1]])), ValueError, "40"),
    (beside(lambda rows: np.where(np.arange(40)[:, None] == 7, np.nan, rows)), ValueError, "row 7"),
    (beside(lambda rows: rows[::-1]), ValueError, r"row \d+ is not"),
    (lambda model, folder: fit_queries(model, TEXTS, embeddings=folder), FileNotFoundError, "Parquet"),
    (narrow_folder, ValueError, "8"),
    (file(uneven, "a.parquet"), ValueError, "a.parquet.*vector.* 32"),
    (file(lambda path, rows: path.write_text("no table"), "b.parquet"), ValueError, "b.parquet"),
    (file(lambda path, rows: np.save(path, rows[:, :8]), "c.npy"), ValueError, r"c.npy.* \(40, 8\)"),
    # Depth 0 without a table.
    (saved_plain, ValueError, "fit_queries"),
    (lambda model, folder: truncate(model, num_layers=0), ValueError, "fit_queries"),
    (lambda model, folder: encode_sizes(model, OTHERS, ["0L-8d"]), ValueError, "fit_queries"),
    (lambda model, folder: SizesEncoder(model, ["0L-8d"]), ValueError, "fit_queries"),
    (lambda model, folder: evaluate(model, sts_task(PAIRS), num_layers=0), ValueError, "fit_queries"),
    (lambda model, folder: benchmark_latency(model, [0]), ValueError, "fit_queries"),
]


@pytest.mark.filterwarnings("ignore:.* documents tell little")
@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_refused(call: Call, error: type[Exception], words: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(error, match=words):
        call(tiny, tmp_path)


def elastic(model: SentenceTransformer) -> None:
    model[0] = TruncatedTransformer.from_transformer(model[0])
    model.encode(OTHERS, num_layers=0)


NO_USE: dict[str, Callable[[SentenceTransformer], object]] = {
    "loss": lambda model: MultiSizeLoss(model, MultipleNegativesRankingLoss(model), ["0L-8d", "4L-32d"]),
    "distillation": lambda model: RelationalDistillLoss(model, sizes=["0L-8d", "4L-32d"]),
    "align": lambda model: align(model, TEXTS, ["0L-8d"]),
    "elastic": elastic,
    "elastic, default": lambda model: TruncatedTransformer.from_transformer(model[0], 0),
}


@pytest.mark.parametrize("use", NO_USE)
def test_depth_0_is_neither_trained_nor_aligned(use: str, fitted: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match="0 layers"):
        NO_USE[use](fitted)


def rewritten(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], object]:
    def call(table: Path) -> None:
        with safe_open(table, "pt") as opened:
            facts = opened.metadata()
        save_file({name: value.clone() for name, value in change(load_file(table)).items()}, table, facts)

    return call


BROKEN: list[tuple[Callable[[Path], object], str]] = [
    (Path.unlink, "missing"),
    (lambda table: table.write_bytes(table.read_bytes()[:100]), "readout-0L"),
    (rewritten(lambda held: held | {"embedding.weight": held["embedding.weight"][:-1]}), "26 x 32.*27 x 32"),
    (rewritten(lambda held: held | {"embedding.weight": held["embedding.weight"][:, :8]}), "27 x 8.*27 x 32"),
    (rewritten(lambda held: held | {"tokenizer": held["tokenizer"][:50]}), "tokenizer"),
    (rewritten(lambda held: {"embedding.weight": held["embedding.weight"]}), "readout-0L"),
    (rewritten(lambda held: held | {"tokenizer": held["tokenizer"] | 0x80}), "tokenizer"),
]


@pytest.mark.parametrize(("change", "words"), BROKEN)
def test_broken_tables(change: Callable[[Path], object], words: str, fitted: SentenceTransformer, tmp_path: Path) -> None:
    fitted.save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match=r"\[0\] layers"):
        truncate(SentenceTransformer(str(tmp_path), device="cpu"), num_layers=0)
    (table,) = tmp_path.rglob("readout-0L.safetensors")
    change(table)
    for num_layers in (None, 0):
        with pytest.raises(ValueError, match=words):
            load(tmp_path, num_layers=num_layers)


@pytest.mark.filterwarnings("ignore:.*too few to align")
def test_table_of_another_model(fitted: SentenceTransformer, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("one", "other")}
    fitted.save_pretrained(str(folders["one"]))
    turned(align(fitted, TEXTS, steps=0)).save_pretrained(str(folders["other"]))
    one, other = (next(folder.rglob("readout-0L.safetensors")) for folder in folders.values())
    shutil.copy(one, other)
    for num_layers in (None, 0):
        with pytest.raises(ValueError, match="other weights"):
            load(folders["other"], num_layers=num_layers)
