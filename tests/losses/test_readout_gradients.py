"""Gradients of losses through readouts, compared with a loop over physically cut models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor
from torch.nn import functional

from st_matryoshka2d import Size, align
from st_matryoshka2d.losses import MultiSizeLoss, RelationalDistillLoss
from tests.support import oracles
from tests.support.losses import assert_gradients_close, batch, exact, gradients, total
from tests.support.pipelines import TEXTS, elastic, normalized, readouts, turned
from tests.support.quick import quick
from tests.support.training import cut_by_hand

ENDS: dict[str, Callable[[SentenceTransformer], SentenceTransformer]] = {
    "as it is": lambda model: model,
    "elastic": lambda model: elastic(normalized(model)),
    "last layers": normalized,
}
KEPT = {1: [0], 2: [0, 3], 3: [0, 1, 3], 4: [0, 1, 2, 3]}  # by "last layers"
SIZES = [Size(1, 4), Size(3, 8), Size(3, 32)]


@pytest.fixture(params=ENDS)
def aligned(request: pytest.FixtureRequest, tiny: SentenceTransformer) -> SentenceTransformer:
    layers = "ends" if request.param == "last layers" else "first"
    return exact(turned(align(ENDS[request.param](tiny), TEXTS, layers=layers)))


def kept(model: SentenceTransformer, depth: int) -> list[int]:
    return KEPT[depth] if hasattr(model.config, "matryoshka_layers") else list(range(depth))


def by_hand(model: SentenceTransformer, size: Size, features: dict[str, Any]) -> Tensor:
    with cut_by_hand(model, size.num_layers, kept(model, size.num_layers)):
        pooled = model[1](model[0](dict(features)))["sentence_embedding"]
    [readout] = readouts(model)
    linear = readout.linear if size.num_layers == 4 else readout.shallower[str(size.num_layers)]
    embedded = linear(pooled)
    unit = isinstance(list(model)[-1], Normalize)
    return (functional.normalize(embedded, dim=1) if unit else embedded)[:, : size.dim]


@pytest.mark.filterwarnings("ignore:MultiSizeLoss does not train the full size")
@pytest.mark.parametrize(
    ("mini_batch_size", "sizes"), [(None, SIZES), (2, [*SIZES, Size(4, 32)])], ids=["shallow", "cached, and the full size"]
)
def test_a_loss_and_its_gradients(aligned: SentenceTransformer, mini_batch_size: int | None, sizes: list[Size]) -> None:
    loss = MultiSizeLoss(aligned, MultipleNegativesRankingLoss(aligned), sizes, mini_batch_size=mini_batch_size)
    found = total(loss(batch(aligned, 2)))
    each = [oracles.mnrl([by_hand(aligned, size, features) for features in batch(aligned, 2)]) for size in sizes]
    expected = torch.stack(each).mean()
    assert found.item() == pytest.approx(expected.item(), abs=1e-9)
    assert_gradients_close(gradients(aligned, found), gradients(aligned, expected), 1e-9)


@pytest.mark.filterwarnings("ignore:.* does not train the full size")
@pytest.mark.parametrize("depth", quick([1, 2, 3], 2))
def test_trains_only_readout_and_layers_of_depth(aligned: SentenceTransformer, depth: int) -> None:
    for loss in (
        MultiSizeLoss(aligned, MultipleNegativesRankingLoss(aligned), [Size(depth, 8)]),
        RelationalDistillLoss(aligned, sizes=[Size(depth, 8)]),
    ):
        found = gradients(aligned, total(loss(batch(aligned, 2))))
        trained = {name for name, gradient in found.items() if gradient.abs().max() > 0}
        assert {name for name in trained if name.startswith("2.") and "weight" in name} == {f"2.shallower.{depth}.weight"}
        layers = {int(name.split("layer.")[1].split(".")[0]) for name in trained if ".layer." in name}
        assert layers == set(kept(aligned, depth))


def test_step_changes_embeddings_of_cut(aligned: SentenceTransformer) -> None:
    before = copy.deepcopy(aligned)
    optimizer = torch.optim.SGD(readouts(aligned)[0].parameters(), lr=1.0)
    MultiSizeLoss(aligned, MultipleNegativesRankingLoss(aligned), [Size(2, 8), Size(4, 32)])(batch(aligned, 2)).backward()
    optimizer.step()
    moved = [
        depth for depth in (1, 2, 3, 4) if not torch.equal(*(readouts(m)[0].at(depth).weight for m in (aligned, before)))
    ]
    assert moved == [2, 4]
