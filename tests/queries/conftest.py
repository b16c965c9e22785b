"""A model with a token table."""

from __future__ import annotations

import copy

import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import fit_queries
from tests.support.pipelines import TEXTS, normalized

pytestmark = pytest.mark.filterwarnings("ignore:40 documents tell little")


@pytest.fixture(scope="session")
def _fitted(_tiny_bert: SentenceTransformer) -> SentenceTransformer:
    with pytest.warns(match="40 documents tell little"):
        return fit_queries(normalized(copy.deepcopy(_tiny_bert)), TEXTS)


@pytest.fixture
def fitted(_fitted: SentenceTransformer) -> SentenceTransformer:
    """A BERT of 4 layers x 32 that normalizes, with a table; copied for each test."""
    return copy.deepcopy(_fitted)
