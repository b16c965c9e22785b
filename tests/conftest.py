"""Saved models for tests of several folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import Size, sizes_ladder
from st_matryoshka2d.losses import StarbucksLoss
from tests.support import families
from tests.support.training import train


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 4 layers x 32."""
    folder = tmp_path_factory.mktemp("model")
    made = families.pipeline(families.CONFIGS["bert"](), folder / "weights", "mean", dense=None, normalize=False)
    made.save_pretrained(str(folder / "tiny"))
    return folder / "tiny"


@pytest.fixture(scope="session")
def starbucks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model that was trained on Starbucks' ladder and two narrower dims at full depth."""
    folder = tmp_path_factory.mktemp("starbucks")
    model = families.pipeline(families.CONFIGS["bert"](), folder / "bert", pooling="mean", dense=None, normalize=False)
    sizes = [*sizes_ladder(model), Size(4, 8), Size(4, 16)]
    train(model, StarbucksLoss(model, MultipleNegativesRankingLoss(model), sizes), folder / "run", max_steps=1)
    model.model_card_data.set_model_id("you/trained")
    model.save_pretrained(str(folder / "saved"))
    return folder / "saved"
