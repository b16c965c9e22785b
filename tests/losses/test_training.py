"""Losses in the Trainer, in `fit` and `old_fit`, and on model cards; `test_mixed.py` trains every recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import InputExample, SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.utils.data import DataLoader

from st_matryoshka2d import Size, truncate
from st_matryoshka2d.losses import MultiSizeLoss, StarbucksLoss, TwoDMSELoss
from tests.support import families
from tests.support.families import TEXTS
from tests.support.losses import batch, total
from tests.support.quick import quick
from tests.support.training import OLD, RECIPES, train

pytestmark = pytest.mark.filterwarnings(
    "ignore:This model was not trained at", "ignore:.* does not train the full size", "ignore:MIPICLoss trains"
)


def mnrl(model: SentenceTransformer) -> MultipleNegativesRankingLoss:
    return MultipleNegativesRankingLoss(model)


def ranking_loss(model: SentenceTransformer, size: Size) -> float:
    cut = truncate(model, num_layers=size.num_layers, dim=size.dim)
    columns = [cut.encode(texts, convert_to_tensor=True) for texts in (TEXTS, OLD)]
    return float(mnrl(cut).compute_loss_from_embeddings(columns, None))  # type: ignore[arg-type]


def test_trained_dims_reach_the_saved_config(tiny: SentenceTransformer, tmp_path: Path) -> None:
    loss = StarbucksLoss(tiny, mnrl(tiny), sizes=[Size(1, 4), Size(4, 32)])
    loss.model.eval()
    loss(batch(tiny, 2))
    assert not hasattr(tiny.config, "matryoshka_dimensions"), "evaluating trains nothing"
    train(tiny, loss, tmp_path / "run", max_steps=1)
    tiny.save_pretrained(str(tmp_path / "model"))
    again = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert (again.config.is_matryoshka, again.config.matryoshka_dimensions) == (True, [4, 32])
    assert truncate(again, num_layers=2, dim=8).config.matryoshka_dimensions == [4, 8]


def test_the_dims_of_several_losses_are_all_declared(tiny: SentenceTransformer) -> None:
    for sizes in ([Size(1, 4), Size(4, 32)], [Size(2, 8), Size(4, 16)]):
        StarbucksLoss(tiny.train(), mnrl(tiny), sizes)(batch(tiny, 2)).backward()
    assert tiny.config.matryoshka_dimensions == [4, 8, 16, 32]


@pytest.mark.parametrize("how", ["fit", "old_fit"])
@pytest.mark.parametrize("recipe", quick(["Starbucks", "MIPIC"], "MIPIC"))
def test_the_older_fits_take_the_losses(
    tiny: SentenceTransformer, recipe: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # `fit` writes checkpoints to the working directory
    data: Any = [InputExample(texts=[text, old]) for text, old in zip(TEXTS, OLD, strict=True)]
    size = Size(4, 8)
    before = ranking_loss(tiny, size)
    objectives = [(DataLoader(data, batch_size=5), RECIPES[recipe](tiny))]
    getattr(tiny, how)(
        objectives, epochs=5, optimizer_params={"lr": 5e-3}, warmup_steps=0, show_progress_bar=False
    )  # fmt: skip
    assert ranking_loss(tiny, size) < before
    assert tiny.config.matryoshka_sizes


def test_settings_and_citation_reach_the_model_card(tiny: SentenceTransformer, tmp_path: Path) -> None:
    train(tiny, StarbucksLoss(tiny, mnrl(tiny), kl_weight=0.25), tmp_path / "run", max_steps=1)
    tiny.save_pretrained(str(tmp_path / "model"))
    card = (tmp_path / "model" / "README.md").read_text()
    for expected in ("StarbucksLoss", '"kl_weight": 0.25', '"1L-4d"', '"4L-32d"', "2410.13230"):
        assert expected in card, expected
    assert "2402.14776v1" in TwoDMSELoss(tiny, mnrl(tiny)).citation


@pytest.mark.parametrize("name", quick(["modernbert", "qwen3", "t5-encoder", "albert"], "albert"))
def test_other_families_train_embeddings_of_cut(name: str, tmp_path: Path) -> None:
    """A step on the shallow size alone lowers the loss of the physically cut model; pre-norm families have oracles too."""
    model = families.pipeline(families.CONFIGS[name](), tmp_path / "weights", pooling="mean", dense=None, normalize=False)
    size = Size(2, 16)
    before = ranking_loss(model, size)
    train(model, MultiSizeLoss(model, mnrl(model), [size]), tmp_path / "run", max_steps=5, learning_rate=5e-3)
    assert ranking_loss(model, size) < before


def test_a_step_of_bfloat16_weights_is_finite(tiny: SentenceTransformer) -> None:
    half = tiny.bfloat16().train()
    assert torch.isfinite(total(StarbucksLoss(half, mnrl(half))(batch(half, 2))))
