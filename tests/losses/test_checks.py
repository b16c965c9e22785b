"""Errors of losses at construction or at the first invalid batch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as st
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from torch import nn

from st_matryoshka2d import Size, truncate
from st_matryoshka2d.losses import FixedSizes, KLAlignment, MultiSizeLoss, StarbucksLoss, TwoDMSELoss, UniformSizes
from tests.support import families
from tests.support.losses import batch


class OneColumn(nn.Module):
    """A loss with an invalid return value."""

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
            (lambda m: st.MegaBatchMarginLoss(m), "MegaBatchMarginLoss cannot be wrapped"),
            (lambda m: StarbucksLoss(m, st.CoSENTLoss(m)), "StarbucksLoss cannot be wrapped"),
            (lambda m: OneColumn(), "OneColumn cannot be wrapped"),
            (lambda m: "cosine", "got 'cosine'"),
            (lambda m: None, "got None"),
        ],
    )
    def test_refuses_invalid_wrapped_losses(self, tiny: SentenceTransformer, recipe: Any, make: Any, words: str) -> None:
        with pytest.raises(TypeError, match=words):
            recipe(tiny, make(tiny))

    def test_refuses_loss_of_another_model(self, tiny: SentenceTransformer) -> None:
        with pytest.raises(ValueError, match="CoSENTLoss was built on a different model"):
            StarbucksLoss(tiny, st.CoSENTLoss(copy.deepcopy(tiny)))

    def test_refuses_projection_of_one_width(self, tiny: SentenceTransformer) -> None:
        with pytest.raises(ValueError, match="projection"):
            StarbucksLoss(tiny, st.EmbedDistillLoss(tiny, projection_dim=8))

    def test_refuses_models_without_layers(self, tiny: SentenceTransformer) -> None:
        static = SentenceTransformer(modules=[StaticEmbedding(families.tokenizer(), embedding_dim=32)], device="cpu")
        for recipe in (StarbucksLoss, TwoDMSELoss):
            with pytest.raises(ValueError, match="starts with StaticEmbedding"):
                recipe(static, st.CoSENTLoss(static))
            with pytest.raises(TypeError, match="got BertModel"):
                recipe(tiny[0].model, st.CoSENTLoss(tiny))

    def test_refuses_family_that_cannot_be_cut(self, tmp_path: Path) -> None:
        model = families.pipeline(families.REFUSED["albert with two groups"](), tmp_path)
        with pytest.raises(ValueError, match="AlbertModel cannot be cut"):
            StarbucksLoss(model, st.CoSENTLoss(model))

    @pytest.mark.parametrize(
        ("settings", "error", "words"),
        [
            ({"sizes": [Size(5, 8)]}, ValueError, "5 layers, but the model has 4"),
            ({"sizes": [Size(4, 64)]}, ValueError, "64 dimensions, but the model has 32"),
            ({"sizes": []}, ValueError, "empty"),
            ({"sizes": [Size(1, 8), Size(1, 8)]}, ValueError, "more than once"),
            ({"sizes": [(1, 8)]}, TypeError, "each of sizes must be a Size"),
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
            ({"dims": np.array([8, 33])}, ValueError, "dim=33: the model has 32"),
            ({"dims": "8"}, TypeError, "integer"),
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

    @pytest.mark.filterwarnings("ignore:.* does not train the full size")
    def test_terms_and_samplers(self, tiny: SentenceTransformer) -> None:
        with pytest.raises(ValueError, match="a sampler has its own weights"):
            MultiSizeLoss(tiny, st.CoSENTLoss(tiny), UniformSizes(Size(4, 32), [8]), size_weights=[1.0])
        with pytest.raises(ValueError, match="has 9 layers"):
            MultiSizeLoss(tiny, st.CoSENTLoss(tiny), FixedSizes([Size(9, 8)], Size(12, 32)))
        with pytest.raises(TypeError, match=r"list of Term objects.*got KLAlignment\(\)"):
            MultiSizeLoss(tiny, st.CoSENTLoss(tiny), [Size(1, 8)], terms=KLAlignment())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"list of Term objects.*got Identity"):
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

    @pytest.mark.parametrize(("make", "columns"), [(st.CoSENTLoss, 2), (st.MarginMSELoss, 3), (st.MSELoss, 1)])
    def test_refuses_missing_labels(self, tiny: SentenceTransformer, make: Any, columns: int) -> None:
        with pytest.raises(ValueError, match="needs labels"):
            StarbucksLoss(tiny, make(tiny))(batch(tiny, columns))

    @pytest.mark.parametrize("mini_batch_size", [None, 2])
    def test_refuses_non_finite_embeddings(self, tiny: SentenceTransformer, mini_batch_size: int | None) -> None:
        with torch.no_grad():
            tiny[0].model.encoder.layer[1].output.dense.weight[0, 0] = float("nan")
        loss = StarbucksLoss(tiny, st.MultipleNegativesRankingLoss(tiny), mini_batch_size=mini_batch_size)
        with pytest.raises(ValueError, match="NaN or infinite embeddings for 5 of 5 texts of column 1"):
            loss(batch(tiny, 2))
        assert all(parameter.grad is None for parameter in tiny.parameters())

    def test_refuses_teacher_embeddings_of_other_width(self, tiny: SentenceTransformer) -> None:
        loss = StarbucksLoss(tiny, st.EmbedDistillLoss(tiny))
        with pytest.raises(ValueError, match="as wide as the model"):
            loss(batch(tiny, 2), torch.rand(5, 16))
        with pytest.raises(ValueError, match="for 3 columns, the dataset has 2"):
            loss(batch(tiny, 2), torch.rand(5, 3, 32))


def test_errors_distinguish_missing_and_late_transformer(tiny: SentenceTransformer) -> None:
    broken = SentenceTransformer(modules=[Pooling(32)], device="cpu")
    with pytest.raises(ValueError, match="starts with Pooling"):
        StarbucksLoss(broken, st.CoSENTLoss(tiny))
