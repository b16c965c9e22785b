"""Losses where they are used: in the Trainer, in `fit`, on model cards, and what they refuse."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    InputExample,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer import losses as st
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from torch import nn
from torch.utils.data import DataLoader

from st_matryoshka2d import Size, encode_sizes, truncate
from st_matryoshka2d.losses import FixedSizes, KLAlignment, MultiSizeLoss, StarbucksLoss, TwoDMSELoss, UniformSizes
from tests import families
from tests.families import TEXTS
from tests.losses_support import batch, total


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


@pytest.mark.parametrize("mini_batch_size", [None, 2])
@pytest.mark.parametrize("recipe", [StarbucksLoss, TwoDMSELoss])
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


def test_the_older_fit_takes_the_losses(tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # it writes checkpoints where it stands
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
    assert "2402.14776" in TwoDMSELoss(tiny, st.MultipleNegativesRankingLoss(tiny)).citation


def test_evaluation_loss_is_logged_by_part(tiny: SentenceTransformer, tmp_path: Path) -> None:
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path), report_to="none", per_device_eval_batch_size=5
    )
    loss = StarbucksLoss(tiny, st.MultipleNegativesRankingLoss(tiny))
    trainer = SentenceTransformerTrainer(model=tiny, args=arguments, train_dataset=pairs(), eval_dataset=pairs(), loss=loss)
    metrics = trainer.evaluate()
    assert math.isfinite(metrics["eval_loss"])


@pytest.mark.parametrize("name", ["modernbert", "qwen3", "t5-encoder", "albert"])
def test_other_families_train_what_their_cut_computes(name: str, tmp_path: Path) -> None:
    """A step on the shallow size alone lowers the loss of the physically cut model."""
    model = families.pipeline(families.CONFIGS[name](), tmp_path / "weights", pooling="mean", dense=None, normalize=False)
    size = Size(2, 16)
    before = ranking_loss(model, size)
    train(model, MultiSizeLoss(model, st.MultipleNegativesRankingLoss(model), [size]), tmp_path / "run", steps=10)
    assert ranking_loss(model, size) < before


def test_prompts_and_prompt_masking_train_what_the_cut_computes(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.set_pooling_include_prompt(False)
    loss = StarbucksLoss(tiny, st.MultipleNegativesRankingLoss(tiny))
    before = encode_sizes(tiny, TEXTS, [Size(1, 4)], prompt="red ")[Size(1, 4)]
    train(tiny, loss, tmp_path, steps=2, prompts={"anchor": "red "})
    after = encode_sizes(tiny, TEXTS, [Size(1, 4)], prompt="red ")[Size(1, 4)]
    assert np.array_equal(after, truncate(tiny, 1, 4).encode(TEXTS, prompt="red "))
    assert not np.allclose(before, after)


def test_bfloat16_steps_are_finite(tiny: SentenceTransformer, tmp_path: Path) -> None:
    trainer = train(
        tiny, StarbucksLoss(tiny, st.MultipleNegativesRankingLoss(tiny)), tmp_path, steps=2, bf16=True, use_cpu=True
    )
    assert all(math.isfinite(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)
    half = copy.deepcopy(tiny).bfloat16().train()
    assert torch.isfinite(total(StarbucksLoss(half, st.MultipleNegativesRankingLoss(half))(batch(half, 2))))


class OneColumn(nn.Module):
    """A loss that returns what cannot be trained."""

    def forward(self) -> None: ...


class TestRefusedAtConstruction:
    @pytest.mark.parametrize("recipe", [StarbucksLoss, TwoDMSELoss])
    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (
                lambda m: st.CachedMultipleNegativesRankingLoss(m),
                "CachedMultipleNegativesRankingLoss embeds texts by itself",
            ),
            (lambda m: st.GISTEmbedLoss(m, m), "GISTEmbedLoss cannot be wrapped"),
            (lambda m: st.SoftmaxLoss(m, 32, 3), "SoftmaxLoss cannot be wrapped"),
            (lambda m: st.ContrastiveTensionLoss(m), "ContrastiveTensionLoss cannot be wrapped"),
            (lambda m: st.MatryoshkaLoss(m, st.CoSENTLoss(m), [8, 32]), "MatryoshkaLoss cannot be wrapped"),
            (lambda m: StarbucksLoss(m, st.CoSENTLoss(m)), "StarbucksLoss cannot be wrapped"),
            (lambda m: OneColumn(), "OneColumn cannot be wrapped"),
            (lambda m: "cosine", "got 'cosine'"),
            (lambda m: None, "got None"),
        ],
    )
    def test_wrapped_losses(self, tiny: SentenceTransformer, recipe: Any, make: Any, words: str) -> None:
        with pytest.raises(TypeError, match=words):
            recipe(tiny, make(tiny))

    def test_a_loss_built_on_another_model(self, tiny: SentenceTransformer) -> None:
        with pytest.raises(ValueError, match="CoSENTLoss was built on another model"):
            StarbucksLoss(tiny, st.CoSENTLoss(copy.deepcopy(tiny)))

    def test_a_projection_for_one_width(self, tiny: SentenceTransformer) -> None:
        with pytest.raises(ValueError, match="projection"):
            StarbucksLoss(tiny, st.EmbedDistillLoss(tiny, projection_dim=8))

    def test_models_without_layers(self, tiny: SentenceTransformer) -> None:
        static = SentenceTransformer(modules=[StaticEmbedding(families.tokenizer(), embedding_dim=32)], device="cpu")
        for recipe in (StarbucksLoss, TwoDMSELoss):
            with pytest.raises(ValueError, match="starts with StaticEmbedding"):
                recipe(static, st.CoSENTLoss(static))
            with pytest.raises(TypeError, match="got BertModel"):
                recipe(tiny[0].model, st.CoSENTLoss(tiny))

    def test_a_family_that_cannot_be_cut(self, tmp_path: Path) -> None:
        model = families.pipeline(families.REFUSED["albert with two groups"](), tmp_path)
        with pytest.raises(ValueError, match="AlbertModel cannot be cut"):
            StarbucksLoss(model, st.CoSENTLoss(model))

    @pytest.mark.parametrize(
        ("settings", "error", "words"),
        [
            ({"sizes": [Size(5, 8)]}, ValueError, "5 layers, the model has 4"),
            ({"sizes": [Size(4, 64)]}, ValueError, "64 dimensions, the model has 32"),
            ({"sizes": []}, ValueError, "empty"),
            ({"sizes": [Size(1, 8), Size(1, 8)]}, ValueError, "more than once"),
            ({"sizes": [(1, 8)]}, TypeError, "Size objects"),
            ({"size_weights": [1.0]}, ValueError, "size_weights needs 4 values, one for each, got 1"),
            ({"size_weights": [1, 1, 1, float("nan")]}, ValueError, "finite"),
            ({"size_weights": [1, 1, 1, -1]}, ValueError, "not negative"),
            ({"size_weights": [0, 0, 0, 0]}, ValueError, "all zero"),
            ({"kl_weight": -1.0}, ValueError, "zero or more"),
            ({"kl_weight": float("inf")}, ValueError, "finite"),
            ({"kl_temperature": 0.0}, ValueError, "above zero"),
            ({"kl_temperature": True}, TypeError, "must be a number"),
            ({"kl_over": "tokens"}, ValueError, "over must be one of"),
            ({"mini_batch_size": 0}, ValueError, "mini_batch_size"),
            ({"mini_batch_size": True}, TypeError, "mini_batch_size"),
        ],
    )
    def test_settings(self, tiny: SentenceTransformer, settings: dict[str, Any], error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            StarbucksLoss(tiny, st.CoSENTLoss(tiny), **settings)

    @pytest.mark.parametrize(
        ("settings", "error", "words"),
        [
            ({"dims": [32]}, ValueError, "not below the full 32"),
            ({"dims": []}, ValueError, "Pass dims"),
            ({"dims": [8, 8]}, ValueError, "more than once"),
            ({"dims": [0]}, ValueError, "1 or more"),
            ({"dims": [True]}, TypeError, "integer"),
            ({"weights": (1, 1, 1, 1)}, ValueError, "weights needs 5 values"),
            ({"weights": (0, 0, 0, 0, 1)}, ValueError, "all zero"),
        ],
    )
    def test_2dmse_settings(
        self, tiny: SentenceTransformer, settings: dict[str, Any], error: type[Exception], words: str
    ) -> None:
        with pytest.raises(error, match=words):
            TwoDMSELoss(tiny, st.CoSENTLoss(tiny), **settings)

    def test_2dmse_needs_a_layer_and_a_dim_to_draw(self, tiny: SentenceTransformer) -> None:
        one = truncate(tiny, num_layers=1)
        with pytest.raises(ValueError, match="only 1"):
            TwoDMSELoss(one, st.CoSENTLoss(one))
        narrow = truncate(tiny, dim=8)
        with pytest.raises(ValueError, match="below the full 8"):
            TwoDMSELoss(narrow, st.CoSENTLoss(narrow))

    def test_terms_and_samplers(self, tiny: SentenceTransformer) -> None:
        with pytest.raises(ValueError, match="a sampler has its own weights"):
            MultiSizeLoss(tiny, st.CoSENTLoss(tiny), UniformSizes(Size(4, 32), [8]), size_weights=[1.0])
        with pytest.raises(ValueError, match="asks for 9 layers"):
            MultiSizeLoss(tiny, st.CoSENTLoss(tiny), FixedSizes([Size(9, 8)], Size(12, 32)))
        with pytest.raises(TypeError, match="terms must be Term objects"):
            MultiSizeLoss(tiny, st.CoSENTLoss(tiny), [Size(1, 8)], terms=[nn.Identity()])  # type: ignore[list-item]
        odd = st.CoSENTLoss(tiny, similarity_fct=lambda a, b: (a - b).abs().sum(-1))
        with pytest.raises(ValueError, match="kl_over='embedding'"):
            StarbucksLoss(tiny, odd)
        StarbucksLoss(tiny, odd, kl_over="embedding")
        MultiSizeLoss(tiny, odd, [Size(1, 8)])
        with pytest.raises(ValueError, match="teacher must be one of"):
            KLAlignment(teacher="best")  # type: ignore[arg-type]


class TestRefusedAtTheFirstBatch:
    @pytest.mark.parametrize(
        ("make", "columns", "words"),
        [
            (st.MultipleNegativesRankingLoss, 1, "2 or more text columns, the dataset has 1"),
            (st.CoSENTLoss, 3, "reads 2 text columns, the dataset has 3"),
            (st.TripletLoss, 2, "reads 3 text columns, the dataset has 2"),
            (st.MarginMSELoss, 2, "3 or more text columns, the dataset has 2"),
            (st.ContrastiveLoss, 3, "reads 2 text columns, the dataset has 3"),
            (st.BatchAllTripletLoss, 2, "reads 1 text columns, the dataset has 2"),
        ],
    )
    def test_column_counts(self, tiny: SentenceTransformer, make: Any, columns: int, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            StarbucksLoss(tiny, make(tiny))(batch(tiny, columns), torch.rand(5))

    @pytest.mark.parametrize("mini_batch_size", [None, 2])
    def test_embeddings_that_are_not_finite(self, tiny: SentenceTransformer, mini_batch_size: int | None) -> None:
        with torch.no_grad():
            tiny[0].model.encoder.layer[1].output.dense.weight[0, 0] = float("nan")
        loss = StarbucksLoss(tiny, st.MultipleNegativesRankingLoss(tiny), mini_batch_size=mini_batch_size)
        with pytest.raises(ValueError, match="NaN or infinite embeddings for 5 of 5 texts of column 1"):
            loss(batch(tiny, 2))
        assert all(parameter.grad is None for parameter in tiny.parameters())

    def test_teacher_embeddings_of_another_width(self, tiny: SentenceTransformer) -> None:
        loss = StarbucksLoss(tiny, st.EmbedDistillLoss(tiny))
        with pytest.raises(ValueError, match="as wide as the model"):
            loss(batch(tiny, 2), torch.rand(5, 16))
        with pytest.raises(ValueError, match="for 3 columns, the dataset has 2"):
            loss(batch(tiny, 2), torch.rand(5, 3, 32))


def test_a_model_without_a_transformer_is_told_from_one_with_a_pooling_in_front(tiny: SentenceTransformer) -> None:
    broken = SentenceTransformer(modules=[Pooling(32)], device="cpu")
    with pytest.raises(ValueError, match="starts with Pooling"):
        StarbucksLoss(broken, st.CoSENTLoss(tiny))
