"""The papers' setting, which the oracles of these tests follow: each depth keeps its first layers."""

from __future__ import annotations

from typing import Any

import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d.model.pipeline import transformers_of
from tests.support import families
from tests.support.declared import declare_layers


def for_first_layers(model: SentenceTransformer) -> SentenceTransformer:
    for transformer in transformers_of(model):
        declare_layers(transformer.model.config, {})
    return model


@pytest.fixture
def tiny(tiny: SentenceTransformer) -> SentenceTransformer:
    """A BERT of 4 layers x 32 that was made for its first layers."""
    return for_first_layers(tiny)


@pytest.fixture(autouse=True)
def _made_for_first_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    made = families.pipeline

    def pipeline(*args: Any, **kwargs: Any) -> SentenceTransformer:
        return for_first_layers(made(*args, **kwargs))

    monkeypatch.setattr(families, "pipeline", pipeline)
