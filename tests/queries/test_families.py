"""Every family of models gets a token table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from st_matryoshka2d import fit_queries, truncate
from tests.support import families

DOCUMENTS = [f"{text} {word}" for text in families.TEXTS for word in families.WORDS]


@pytest.mark.parametrize("family", [*families.CONFIGS, *families.UNNAMED])
def test_a_table_finds_the_documents_of_a_family(family: str, tmp_path: Path) -> None:
    model = families.pipeline({**families.CONFIGS, **families.UNNAMED}[family](), tmp_path)
    fitted = fit_queries(model, DOCUMENTS)
    table = truncate(fitted, num_layers=0)
    assert isinstance(table[0], StaticEmbedding)
    index = model.encode_document(DOCUMENTS)
    assert np.array_equal(fitted.encode_document(DOCUMENTS), index)
    found = model.similarity(table.encode_query(DOCUMENTS), index).numpy()
    among_the_closest_tenth = np.mean(
        [(row > row[place] + 1e-6).sum() < len(DOCUMENTS) / 10 for place, row in enumerate(found)]
    )
    assert among_the_closest_tenth > 0.25, "chance is a tenth"
