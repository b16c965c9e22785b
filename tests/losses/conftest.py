"""The papers' setting, which the oracles of these tests follow: each depth keeps its first layers."""

from __future__ import annotations

import pytest
from sentence_transformers import SentenceTransformer

from tests.support.declared import declare_layers


@pytest.fixture
def tiny(tiny: SentenceTransformer) -> SentenceTransformer:
    """A BERT of 4 layers x 32 that was made for its first layers."""
    declare_layers(tiny.config, {})
    return tiny
