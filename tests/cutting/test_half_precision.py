"""Cuts, tables and asymmetric models encode in half precision, also by plain sentence-transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch.nn.functional import cosine_similarity

from st_matryoshka2d import align, asymmetric, load, truncate
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.queries.fit_queries import with_table
from tests.support import families
from tests.support.pipelines import OTHERS, TEXTS, normalized, turned
from tests.support.quick import quick

SIDES = {"encode_query", "encode_document"}


@pytest.fixture(scope="module")
def models(_tiny_bert: SentenceTransformer) -> dict[str, SentenceTransformer]:
    rows = torch.randn(len(families.VOCABULARY), 32, generator=torch.Generator().manual_seed(0))
    aligned = turned(align(normalized(copy.deepcopy(_tiny_bert)), TEXTS, steps=0))
    whole = with_table(Pipeline.of(aligned), StaticEmbedding(aligned.tokenizer.backend_tokenizer, rows), {}, {}).model
    pairs = {f"queries by {query}": asymmetric(whole, query) for query in (0, 2)}
    return {**pairs, "cut": truncate(whole, num_layers=2), "table": truncate(whole, num_layers=0), "whole": whole}


@pytest.mark.parametrize("dtype", quick([torch.bfloat16, torch.float16], torch.bfloat16))
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("read", [SentenceTransformer, load])
def test_all_encode_in_half_precision(
    dtype: torch.dtype, saved: bool, read: Any, models: dict[str, SentenceTransformer], tmp_path: Path
) -> None:
    for name, model in models.items():
        folder = str(tmp_path / name)
        (copy.deepcopy(model).to(dtype) if saved else model).save_pretrained(folder)
        half = read(folder, device="cpu", **({} if saved else {"model_kwargs": {"dtype": dtype}}))
        # a table adds its rows in float32
        by_table = {"table": SIDES, "queries by 0": {"encode_query"}}.get(name, set())
        for side in SIDES:
            found, expected = (getattr(each, side)(OTHERS, convert_to_tensor=True) for each in (half, model))
            assert found.dtype == (torch.float32 if side in by_table else dtype)
            assert cosine_similarity(found.float(), expected).min() > 0.999
        half.similarity(half.encode_query(OTHERS), half.encode_document(OTHERS))


def test_a_table_is_read_in_the_precision_asked_for(models: dict[str, SentenceTransformer], tmp_path: Path) -> None:
    models["whole"].save_pretrained(str(tmp_path))
    table = load(tmp_path, num_layers=0, device="cpu", model_kwargs={"dtype": "bfloat16"})
    assert table.dtype == torch.bfloat16
