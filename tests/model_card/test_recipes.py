"""What the card of a saved model lists and prints holds for that folder: its code was run."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from st_matryoshka2d import Size, add_to_model_card, align, asymmetric, load, truncate
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.sides import side_of
from st_matryoshka2d.queries.fit_queries import with_table
from tests.support import families
from tests.support.declared import declare_training
from tests.support.pipelines import OTHERS, TEXTS, normalized, turned

NAME = "you/model"
Whole = dict[str, SentenceTransformer]
pytestmark = pytest.mark.filterwarnings("ignore:Nothing says", "ignore:This model was (cut from an|not) aligned")

MODELS: dict[str, Callable[[Whole], SentenceTransformer]] = {
    "plain cut": lambda whole: truncate(whole["plain"], "2L-16d"),
    "trained cut": lambda whole: truncate(whole["trained"], num_layers=3),
    "aligned, whole": lambda whole: whole["aligned"],
    "aligned, fewer dims": lambda whole: truncate(whole["aligned"], dim=16),
    "aligned cut": lambda whole: truncate(whole["aligned"], num_layers=3),
    "aligned cut, fewer dims": lambda whole: truncate(whole["aligned"], "3L-16d"),
    "cut of an aligned cut": lambda whole: truncate(truncate(whole["aligned"], num_layers=3), num_layers=2),
    "asymmetric": lambda whole: asymmetric(whole["aligned"], 2),
    "asymmetric, with a table": lambda whole: asymmetric(whole["aligned"], "0L-16d"),
    "side of documents": lambda whole: side_of(asymmetric(whole["aligned"], 2), "document"),
    "token table": lambda whole: truncate(whole["aligned"], num_layers=0),
}


@pytest.fixture(scope="module")
def whole(_tiny_bert: SentenceTransformer) -> Whole:
    plain = normalized(copy.deepcopy(_tiny_bert))
    trained = copy.deepcopy(plain)
    sizes = [Size(1, 8), Size(2, 8), Size(2, 16), Size(3, 16), Size(3, 32), Size(4, 32)]
    declare_training(trained.config, sizes, "StarbucksLoss(CoSENTLoss)")
    aligned = turned(align(plain, TEXTS, steps=0))
    rows = torch.randn(len(families.VOCABULARY), 32, generator=torch.Generator().manual_seed(0))
    table = StaticEmbedding(aligned.tokenizer.backend_tokenizer, rows)
    read = {"documents": 40, "queries": 0}
    return {"plain": plain, "trained": trained, "aligned": with_table(Pipeline.of(aligned), table, {}, read).model}


@pytest.mark.parametrize("name", MODELS)
def test_the_card_holds_for_its_folder(name: str, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder = MODELS[name](whole), str(tmp_path / "folder")
    model.model_card_data.set_model_id(NAME)
    model.save_pretrained(folder)
    add_to_model_card(folder)
    card = Path(folder, "README.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL):
            run(block.replace(NAME, folder), model)
        for call in re.findall(r"`(SentenceTransformer\([^`]+\))`", card):
            fewer = eval(call.replace(NAME, folder))
            same(fewer.encode(OTHERS), model.encode(OTHERS)[:, : fewer.truncate_dim])
        for layers, dims in re.findall(r"^\| ([\d, ]+) \| ([\d, ]+) \|$", card, flags=re.MULTILINE):
            for size in (Size(int(depth), int(dims.rpartition(" ")[2])) for depth in layers.split(", ")):
                of = whole["trained" if name == "trained cut" else "aligned"]
                same(load(folder, size, device="cpu").encode(OTHERS), truncate(of, size).encode(OTHERS))


def run(code: str, model: SentenceTransformer) -> None:
    """Run a block of a card, and compare what it leaves with the model."""
    left: dict[str, Any] = {}
    exec(code, left)
    if "embeddings" in left:
        same(left["embeddings"], model.encode(left["sentences"]))
        assert f"# {list(left['embeddings'].shape)}" in code
    if "query_embeddings" in left:
        same(left["query_embeddings"], model.encode_query(left["queries"]))
        same(left["document_embeddings"], model.encode_document(left["documents"]))
    elif "queries" in left:
        same(left["queries"], model.encode_query(["..."]))
        same(left["documents"], model.encode_document(["..."]))
    if "small" in left:
        cut = left["small"]
        size = Size(cut.config.num_hidden_layers, cut.get_embedding_dimension())
        expected = truncate(model, size).encode(OTHERS)
        for each in (cut, SentenceTransformer(str(size), device="cpu")):
            same(each.encode(OTHERS), expected)
    if "table" in left:
        same(left["table"].encode(OTHERS), truncate(model, num_layers=0).encode(OTHERS))
        same(left["vectors"], left["table"].encode_query(["..."]))
    if "query-encoder" in code:
        same(SentenceTransformer("query-encoder", device="cpu").encode(OTHERS), model.encode_query(OTHERS))


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=1e-5)
