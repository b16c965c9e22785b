"""Losses in the Trainer, in `fit` and on model cards."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from sentence_transformers import (
    InputExample,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer import losses as st
from torch import nn
from torch.utils.data import DataLoader

from st_matryoshka2d import Size, encode_sizes, truncate
from st_matryoshka2d.losses import MultiSizeLoss, StarbucksLoss, TwoDMSELoss
from tests.support import families
from tests.support.families import TEXTS
from tests.support.losses import batch, total
from tests.support.quick import quick


def pairs() -> Dataset:
    return Dataset.from_dict({"anchor": TEXTS * 4, "positive": [f"old {text}" for text in TEXTS] * 4})


def train(
    model: SentenceTransformer, loss: nn.Module, folder: Path, steps: int = 6, **kwargs: Any
) -> SentenceTransformerTrainer:
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=5,
        learning_rate=5e-3,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        **kwargs,
    )
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=pairs(), loss=loss)
    trainer.train()
    return trainer


def ranking_loss(model: SentenceTransformer, size: Size) -> float:
    cut = truncate(model, size.num_layers, size.dim)
    with torch.no_grad():
        loss = st.MultipleNegativesRankingLoss(cut)
        anchors, positives = (
            cut.encode(TEXTS, convert_to_tensor=True),
            cut.encode([f"old {t}" for t in TEXTS], convert_to_tensor=True),
        )
        return float(loss.compute_loss_from_embeddings([anchors, positives], None))  # type: ignore[arg-type]


@pytest.mark.parametrize("mini_batch_size", quick([None, 2], 2))
@pytest.mark.parametrize("recipe", [StarbucksLoss, TwoDMSELoss])
@pytest.mark.filterwarnings("ignore:This model was not trained at")
def test_every_size_learns_in_the_trainer(
    tiny: SentenceTransformer, recipe: Any, mini_batch_size: int | None, tmp_path: Path
) -> None:
    sizes = [Size(1, 8), Size(2, 16), Size(4, 32)]
    before = {size: ranking_loss(tiny, size) for size in sizes}
    loss = recipe(tiny, st.MultipleNegativesRankingLoss(tiny), mini_batch_size=mini_batch_size)
    trainer = train(tiny, loss, tmp_path, steps=20)
    assert all(ranking_loss(tiny, size) < before[size] for size in sizes)
    logged = [entry for entry in trainer.state.log_history if "task" in entry]
    assert len(logged) == 20
    assert all(math.isclose(entry["loss"], entry["task"] + entry["kl"], rel_tol=1e-3, abs_tol=1e-3) for entry in logged)


@pytest.mark.filterwarnings("ignore:This model was not trained at")
def test_trained_dims_reach_the_saved_config(tiny: SentenceTransformer, tmp_path: Path) -> None:
    loss = StarbucksLoss(tiny, st.MultipleNegativesRankingLoss(tiny), sizes=[Size(1, 4), Size(4, 32)])
    loss.model.eval()
    loss(batch(tiny, 2))
    assert not hasattr(tiny.config, "matryoshka_dimensions"), "evaluating trains nothing"
    train(tiny, loss, tmp_path / "run", steps=1)
    tiny.save_pretrained(str(tmp_path / "model"))
    again = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert (again.config.is_matryoshka, again.config.matryoshka_dimensions) == (True, [4, 32])
    assert truncate(again, num_layers=2, dim=8).config.matryoshka_dimensions == [4, 8]


@pytest.mark.filterwarnings("ignore:.* does not train the full size")
def test_the_dims_of_several_losses_are_all_declared(tiny: SentenceTransformer) -> None:
    for sizes in ([Size(1, 4), Size(4, 32)], [Size(2, 8), Size(4, 16)]):
        StarbucksLoss(tiny.train(), st.MultipleNegativesRankingLoss(tiny), sizes)(batch(tiny, 2)).backward()
    assert tiny.config.matryoshka_dimensions == [4, 8, 16, 32]


@pytest.mark.filterwarnings("ignore:This model was not trained at")
def test_the_older_fit_takes_the_losses(tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # it writes checkpoints to the working directory
    examples = [InputExample(texts=[text, f"old {text}"]) for text in TEXTS]
    loader: Any = DataLoader(examples, batch_size=5)  # type: ignore[arg-type]
    before = ranking_loss(tiny, Size(1, 8))
    loss = StarbucksLoss(tiny, st.MultipleNegativesRankingLoss(tiny))
    tiny.fit([(loader, loss)], epochs=15, optimizer_params={"lr": 5e-3}, warmup_steps=0, show_progress_bar=False)
    assert ranking_loss(tiny, Size(1, 8)) < before


def test_settings_and_citation_reach_the_model_card(tiny: SentenceTransformer, tmp_path: Path) -> None:
    train(tiny, StarbucksLoss(tiny, st.MultipleNegativesRankingLoss(tiny), kl_weight=0.25), tmp_path / "run", steps=1)
    tiny.save_pretrained(str(tmp_path / "model"))
    card = (tmp_path / "model" / "README.md").read_text()
    for expected in ("StarbucksLoss", '"kl_weight": 0.25', '"1L-4d"', '"4L-32d"', "2410.13230"):
        assert expected in card, expected
    assert "2402.14776v1" in TwoDMSELoss(tiny, st.MultipleNegativesRankingLoss(tiny)).citation


def test_evaluation_loss_is_logged_by_part(tiny: SentenceTransformer, tmp_path: Path) -> None:
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path), report_to="none", per_device_eval_batch_size=5
    )
    loss = StarbucksLoss(tiny, st.MultipleNegativesRankingLoss(tiny))
    trainer = SentenceTransformerTrainer(model=tiny, args=arguments, train_dataset=pairs(), eval_dataset=pairs(), loss=loss)
    metrics = trainer.evaluate()
    assert math.isfinite(metrics["eval_loss"])


@pytest.mark.parametrize("name", quick(["modernbert", "qwen3", "t5-encoder", "albert"], "modernbert"))
@pytest.mark.filterwarnings("ignore:.* does not train the full size")
def test_other_families_train_embeddings_of_cut(name: str, tmp_path: Path) -> None:
    """A step on the shallow size alone lowers the loss of the physically cut model."""
    model = families.pipeline(families.CONFIGS[name](), tmp_path / "weights", pooling="mean", dense=None, normalize=False)
    size = Size(2, 16)
    before = ranking_loss(model, size)
    train(model, MultiSizeLoss(model, st.MultipleNegativesRankingLoss(model), [size]), tmp_path / "run", steps=10)
    assert ranking_loss(model, size) < before


def test_prompts_and_masking_train_embeddings_of_cut(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.set_pooling_include_prompt(False)
    loss = StarbucksLoss(tiny, st.MultipleNegativesRankingLoss(tiny))
    before = encode_sizes(tiny, TEXTS, [Size(1, 4)], prompt="red ")[Size(1, 4)]
    train(tiny, loss, tmp_path, steps=2, prompts={"anchor": "red "})
    after = encode_sizes(tiny, TEXTS, [Size(1, 4)], prompt="red ")[Size(1, 4)]
    assert np.array_equal(after, truncate(tiny, 1, 4).encode(TEXTS, prompt="red "))
    assert not np.allclose(before, after)


@pytest.mark.parametrize("recipe", [StarbucksLoss, TwoDMSELoss])
def test_trains_only_unmerged_adapter(tiny: SentenceTransformer, recipe: Any, tmp_path: Path) -> None:
    tiny.add_adapter(LoraConfig(r=2, target_modules=["query", "value"]))
    before = {name: value.clone() for name, value in tiny.state_dict().items()}
    train(tiny, recipe(tiny, st.MultipleNegativesRankingLoss(tiny)), tmp_path, steps=3)
    moved = {name for name, value in tiny.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert any(".layer.0." in name for name in moved)


def test_bfloat16_steps_are_finite(tiny: SentenceTransformer, tmp_path: Path) -> None:
    trainer = train(
        tiny, StarbucksLoss(tiny, st.MultipleNegativesRankingLoss(tiny)), tmp_path, steps=2, bf16=True, use_cpu=True
    )
    assert all(math.isfinite(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)
    half = copy.deepcopy(tiny).bfloat16().train()
    assert torch.isfinite(total(StarbucksLoss(half, st.MultipleNegativesRankingLoss(half))(batch(half, 2))))
