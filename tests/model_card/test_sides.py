"""The card of an asymmetric model says which size embeds what."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import add_to_model_card, align, asymmetric
from tests.support import families
from tests.support.pipelines import TEXTS, normalized, routed


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_the_card_names_both_sides(family: str, tmp_path: Path) -> None:
    model = families.pipeline(families.CONFIGS[family](), tmp_path / "weights", "mean", dense=None, normalize=True)
    model.model_card_data.license = "mit"
    made = asymmetric(align(model, TEXTS, steps=0), "1L-8d")
    made.model_card_data.set_model_id("me/small-queries")
    made.save_pretrained(str(tmp_path / "made"))
    add_to_model_card(tmp_path / "made")
    add_to_model_card(tmp_path / "made")
    card = (tmp_path / "made" / "README.md").read_text(encoding="utf-8")
    for words, times in {
        "## Queries and documents": 1,
        "in one space: 1 layer for queries, 4 layers for documents.": 1,
        'load("me/small-queries", route="query")': 1,
        "\n- asymmetric\n": 1,
        "license: mit": 1,
        "model.encode_document": 2,  # once by sentence-transformers
        "## Layers and dimensions": 0,
    }.items():
        assert card.count(words) == times, words


def test_a_router_with_one_depth_has_the_section_on_sizes(tiny: SentenceTransformer, tmp_path: Path) -> None:
    align(routed(normalized(tiny), shared=False), TEXTS, steps=0).save_pretrained(str(tmp_path))
    add_to_model_card(tmp_path)
    assert "## Layers and dimensions" in (tmp_path / "README.md").read_text(encoding="utf-8")
