"""Losses compared with sentence-transformers' own, and in their place."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.sentence_transformer import losses as st
from torch import Tensor, nn

from st_matryoshka2d import Size, truncate
from st_matryoshka2d.losses import KLAlignment, MultiSizeLoss, RelationalDistillLoss
from tests.support.families import TEXTS
from tests.support.losses import assert_gradients_close, batch, exact, gradients, seed_draws, total
from tests.support.quick import quick
from tests.support.training import RECIPES

pytestmark = pytest.mark.filterwarnings("ignore:.* trains .* tensors of its own", "ignore:.* does not train the full size")

TOLERANCE = 1e-5


SCORES = torch.tensor([0.9, 0.1, 0.5, 0.4, 0.3])


TEACHER = torch.randn(5, 3, 32, generator=torch.Generator().manual_seed(0)).double()


# Loss, text columns, labels.
WRAPPED: dict[str, tuple[Callable[[SentenceTransformer], nn.Module], int, Tensor | None]] = {
    "MultipleNegativesRanking": (st.MultipleNegativesRankingLoss, 3, None),
    "MultipleNegativesRanking, dot": (lambda m: st.MultipleNegativesRankingLoss(m, 1.0, util.dot_score), 2, None),
    "MultipleNegativesRanking, all directions": (
        lambda m: st.MultipleNegativesRankingLoss(
            m, directions=("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
        ),
        3,
        None,
    ),
    "MultipleNegativesSymmetricRanking": (st.MultipleNegativesSymmetricRankingLoss, 2, None),
    "CoSENT": (st.CoSENTLoss, 2, SCORES),
    "AnglE": (st.AnglELoss, 2, SCORES),
    "Triplet": (st.TripletLoss, 3, None),
    "Triplet, cosine": (lambda m: st.TripletLoss(m, st.TripletDistanceMetric.COSINE, 0.5), 3, None),
    "MarginMSE": (st.MarginMSELoss, 3, SCORES),
    "DistillKLDiv": (st.DistillKLDivLoss, 3, torch.stack([SCORES, 1 - SCORES], dim=1)),
    "EmbedDistill": (st.EmbedDistillLoss, 3, TEACHER),
    "EmbedDistill, one teacher for all columns": (lambda m: st.EmbedDistillLoss(m, "l2"), 2, TEACHER[:, 0]),
    "MSE": (st.MSELoss, 1, TEACHER[:, 0]),
    "Contrastive": (st.ContrastiveLoss, 2, torch.tensor([1, 0, 1, 0, 0])),
    "BatchAllTriplet": (st.BatchAllTripletLoss, 1, torch.tensor([0, 0, 1, 1, 2])),
    "BatchSemiHardTriplet": (st.BatchSemiHardTripletLoss, 1, torch.tensor([0, 0, 1, 1, 2])),
    "GlobalOrthogonalRegularization": (st.GlobalOrthogonalRegularizationLoss, 2, None),
}


def assert_equal_losses(model: SentenceTransformer, parts: dict[str, Tensor], expected: Tensor) -> None:
    assert total(parts).item() == pytest.approx(expected.item(), abs=TOLERANCE)
    assert_gradients_close(gradients(model, total(parts)), gradients(model, expected), TOLERANCE)


@pytest.mark.parametrize(
    ("name", "mini_batch_size"),
    quick(
        [(name, size) for name in WRAPPED for size in (None, 2)],
        *((name, None) for name in WRAPPED),
        *((name, 2) for name in ("CoSENT", "EmbedDistill", "GlobalOrthogonalRegularization")),
    ),
)
def test_the_full_size_alone_is_the_wrapped_loss(tiny: SentenceTransformer, name: str, mini_batch_size: int | None) -> None:
    make, columns, labels = WRAPPED[name]
    model = exact(tiny)
    loss = MultiSizeLoss(model, make(model), [Size(4, 32)], mini_batch_size=mini_batch_size)
    parts = loss(batch(model, columns), labels)
    values = make(model)(batch(model, columns), labels)
    expected = {f"task_{key}": value for key, value in values.items()} if isinstance(values, dict) else {"task": values}
    assert {key: part.item() for key, part in parts.items()} == pytest.approx(
        {key: value.item() for key, value in expected.items()}, abs=TOLERANCE
    )
    assert_equal_losses(model, parts, total(expected))


def test_prefixes_of_the_last_layer_are_matryoshka_loss(tiny: SentenceTransformer) -> None:
    model = exact(tiny)
    dims, weights = [32, 16, 8], [1.0, 0.5, 2.0]
    wrapped = st.MultipleNegativesRankingLoss(model)
    ours = MultiSizeLoss(model, wrapped, [Size(4, dim) for dim in dims], size_weights=[3 * weight for weight in weights])
    parts = ours(batch(model, 3))
    expected = st.MatryoshkaLoss(model, st.MultipleNegativesRankingLoss(model), dims, weights)(batch(model, 3), None)
    assert_equal_losses(model, parts, expected)


def test_all_layers_are_adaptive_layer_loss(tiny: SentenceTransformer) -> None:
    """Layer 0 of AdaptiveLayerLoss, the embedding output, gets weight zero: no cut has it."""
    model = exact(tiny)
    theirs = st.AdaptiveLayerLoss(
        model,
        st.MultipleNegativesRankingLoss(model),
        n_layers_per_step=-1,
        prior_layers_weight=0.7,
        kl_temperature=0,
        layer_weighting=lambda index: float(index > 0),
    )
    expected = theirs(batch(model, 3), None)
    share = 0.7 / 4  # AdaptiveLayerLoss averages over the four states below the last
    weights = [4 * share, 4 * share, 4 * share, 4.0]
    sizes = [Size(num_layers, 32) for num_layers in range(1, 5)]
    parts = MultiSizeLoss(model, st.MultipleNegativesRankingLoss(model), sizes, size_weights=weights)(batch(model, 3))
    assert_equal_losses(model, parts, expected)


@pytest.mark.parametrize("dims", [[32], [32, 16, 8]])
def test_one_layer_with_alignment_over_coordinates_is_matryoshka_2d_loss(
    tiny: SentenceTransformer, dims: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matryoshka2dLoss aligns only the full width, so compare alignment there, and all dims without alignment."""
    model = exact(tiny)
    monkeypatch.setattr(random, "sample", lambda layers, count: [2])  # the one layer that AdaptiveLayerLoss draws
    temperature = 0.3 if dims == [32] else 0
    depth = {"n_layers_per_step": 1, "kl_temperature": temperature}
    task = st.MultipleNegativesRankingLoss(model)
    flat = {"n_dims_per_step": -1, **depth}
    theirs = st.AdaptiveLayerLoss(model, task, **depth) if temperature else st.Matryoshka2dLoss(model, task, dims, **flat)
    expected = theirs(batch(model, 3), None)
    sizes = [Size(num_layers, dim) for num_layers in (2, 4) for dim in dims]
    terms = [KLAlignment(temperature=0.3, over="embedding", teacher="last_layer", reduction="sum")] if temperature else []
    ours = MultiSizeLoss(model, st.MultipleNegativesRankingLoss(model), sizes, terms, size_weights=[len(sizes)] * len(sizes))
    assert_equal_losses(model, ours(batch(model, 3)), expected)


SETTINGS: list[dict[str, int]] = [{}, {"mini_batch_size": 2}]


@pytest.mark.parametrize("settings", SETTINGS, ids=["whole", "gradient caching"])
@pytest.mark.parametrize("recipe", quick(RECIPES, "2DMSE", "MIPIC"))
def test_manual_loop_can_backpropagate_parts(tiny: SentenceTransformer, recipe: str, settings: dict[str, int]) -> None:
    loss = RECIPES[recipe](tiny.double(), **settings).double()
    with torch.no_grad():
        tiny[0].model.embeddings.word_embeddings.weight.mul_(1.1)  # otherwise a teacher agrees
    seed_draws(loss, 1)
    expected = gradients(loss, total(loss(batch(tiny, 2))))
    seed_draws(loss, 1)
    loss(batch(tiny, 2)).backward()
    assert_gradients_close({name: p.grad for name, p in loss.named_parameters() if p.grad is not None}, expected, 1e-10)


@pytest.mark.parametrize("settings", SETTINGS, ids=["whole", "gradient caching"])
@pytest.mark.parametrize("recipe", quick(RECIPES, "Starbucks", "MIPIC"))
def test_leaves_features_of_caller_unchanged(tiny: SentenceTransformer, recipe: str, settings: dict[str, int]) -> None:
    columns = batch(tiny, 3)
    before = [{name: value.clone() for name, value in column.items() if torch.is_tensor(value)} for column in columns]
    names = [list(column) for column in columns]
    RECIPES[recipe](tiny, **settings)(columns).backward()
    assert [list(column) for column in columns] == names
    for column, old in zip(columns, before, strict=True):
        assert all(torch.equal(column[name], value) for name, value in old.items())


def mnrl(model: SentenceTransformer) -> st.MultipleNegativesRankingLoss:
    return st.MultipleNegativesRankingLoss(model)


def test_narrow_cut_is_trained_at_its_dim(tiny: SentenceTransformer) -> None:
    cut = truncate(tiny, dim=8)
    columns = [tiny.encode(texts, convert_to_tensor=True) for texts in (TEXTS, TEXTS[::-1])]
    narrow = mnrl(tiny).compute_loss_from_embeddings([column[:, :8] for column in columns], None)
    assert torch.allclose(MultiSizeLoss(cut, mnrl(cut), [Size(4, 8)])(batch(cut, 2))["task"], narrow, atol=1e-6)
    assert torch.allclose(mnrl(cut)(batch(cut, 2), None), mnrl(tiny)(batch(tiny, 2), None), atol=1e-6)


def test_warns_once_if_full_size_is_not_trained(tiny: SentenceTransformer) -> None:
    with pytest.warns(UserWarning, match="4L-32d") as caught:
        loss = RelationalDistillLoss(tiny, sizes=[Size(3, 32)])
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(batch(tiny, 2))
