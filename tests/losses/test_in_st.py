"""Losses in place of sentence-transformers' own: inside other losses, in `old_fit`, in a manual loop."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as st

from st_matryoshka2d import Size, TruncatedTransformer, truncate
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.losses import FixedSizes, MultiSizeLoss, RelationalDistillLoss, StarbucksLoss, TwoDMSELoss
from tests.support.families import TEXTS
from tests.support.losses import assert_gradients_close, batch, gradients, seed_draws, total
from tests.support.quick import quick
from tests.support.training import RECIPES

pytestmark = pytest.mark.filterwarnings("ignore:.* trains .* tensors of its own")

SETTINGS: list[dict[str, int]] = [{}, {"mini_batch_size": 2}]


def mnrl(model: SentenceTransformer) -> st.MultipleNegativesRankingLoss:
    return st.MultipleNegativesRankingLoss(model)


@pytest.mark.parametrize("recipe", RECIPES)
def test_inside_another_loss_that_chooses_sizes_it_is_refused(tiny: SentenceTransformer, recipe: str) -> None:
    loss = RECIPES[recipe](tiny, mini_batch_size=2 if recipe == "MIPIC" else None)
    name = type(loss).__name__
    for make in (st.MatryoshkaLoss, st.Matryoshka2dLoss):
        with pytest.raises(TypeError, match=f"{name} cannot be inside MatryoshkaLoss or Matryoshka2dLoss"):
            make(tiny, loss, [8, 32])
    with pytest.warns(UserWarning, match=f"AdaptiveLayerLoss is not compatible with {name}"):
        around = st.AdaptiveLayerLoss(tiny, loss)
    before = tiny.config.to_dict()
    with pytest.raises(TypeError, match=f"{name} cannot be inside AdaptiveLayerLoss"):
        around(batch(tiny, 2), None)
    assert tiny.config.to_dict() == before
    assert total(loss(batch(tiny, 2))).isfinite(), "the model is as it was"


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


def test_forward_leaves_no_layers_in_features(tiny: SentenceTransformer) -> None:
    plain = set(tiny(tiny.preprocess(TEXTS)))
    given = tiny.preprocess(TEXTS)
    names = list(given)
    assert set(EveryLayer.of(tiny, [1, 3])(given)) == plain
    assert list(given) == names
    tiny[0] = TruncatedTransformer.from_transformer(tiny[0])
    assert set(tiny(given, num_layers=2)) == set(given) == plain


def test_narrow_cut_is_trained_at_its_dim(tiny: SentenceTransformer) -> None:
    cut = truncate(tiny, dim=8)
    columns = [tiny.encode(texts, convert_to_tensor=True) for texts in (TEXTS, TEXTS[::-1])]
    narrow = mnrl(tiny).compute_loss_from_embeddings([column[:, :8] for column in columns], None)
    assert torch.allclose(MultiSizeLoss(cut, mnrl(cut), [Size(4, 8)])(batch(cut, 2))["task"], narrow, atol=1e-6)
    assert torch.allclose(mnrl(cut)(batch(cut, 2), None), mnrl(tiny)(batch(tiny, 2), None), atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: MultiSizeLoss(model, mnrl(model), [Size(2, 8), Size(4, 8)]),
        lambda model: MultiSizeLoss(model, mnrl(model), FixedSizes([Size(2, 32)], Size(4, 32))),
        lambda model: StarbucksLoss(model, mnrl(model), [Size(3, 32)]),
        lambda model: RelationalDistillLoss(model, sizes=[Size(3, 32)]),
    ],
)
def test_warns_once_if_full_size_is_not_trained(tiny: SentenceTransformer, make: Any) -> None:
    with pytest.warns(UserWarning, match="does not train the full size, 4L-32d") as caught:
        loss = make(tiny)
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(batch(tiny, 2))


@pytest.mark.parametrize("recipe", RECIPES)
def test_default_recipes_do_not_warn(tiny: SentenceTransformer, recipe: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RECIPES[recipe](tiny)
        TwoDMSELoss(tiny, mnrl(tiny), weights=(0, 1, 1, 1, 1))
