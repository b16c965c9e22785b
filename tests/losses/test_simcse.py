"""Training without labels on texts paired with themselves: only dropout makes their embeddings differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor, nn

from st_matryoshka2d import Size
from st_matryoshka2d.losses import MultiSizeLoss, Step, Term
from tests.support.families import TEXTS
from tests.support.losses import assert_gradients_close, gradients, seed_draws, total
from tests.support.quick import quick
from tests.support.training import RECIPES, cut_by_hand, train

pytestmark = pytest.mark.filterwarnings("ignore:MIPICLoss trains")

TRAINED = {"Starbucks": Size(2, 8), "MIPIC": Size(4, 8)}


def noisy(model: SentenceTransformer, share: float = 0.1) -> SentenceTransformer:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = share
    return model.train()


def paired_with_themselves() -> Dataset:
    return Dataset.from_dict({"text": TEXTS * 4, "same": TEXTS * 4})


def twice(model: SentenceTransformer, count: int = 2) -> list[dict[str, Any]]:
    return [model.preprocess(TEXTS) for _ in range(count)]


def badness(model: SentenceTransformer, size: Size) -> float:
    """Return the cut model's loss of finding a text's second embedding among the others, with dropout."""
    model.train()
    values = []
    for seed in range(4):
        torch.manual_seed(seed)
        with cut_by_hand(model, size.num_layers), torch.no_grad():
            first, second = (model(column)["sentence_embedding"][:, : size.dim] for column in twice(model))
        scores = 20 * util.cos_sim(first, second)
        values.append(float(nn.functional.cross_entropy(scores, torch.arange(len(scores)))))
    return sum(values) / len(values)


class Spy(Term):
    """Records the embeddings of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[Tensor]] = []

    def forward(self, step: Step) -> dict[str, Tensor]:
        for size in step.weights:
            self.seen.append([column.detach() for column in step.embeddings(size)])
        return {}

    def get_config_dict(self) -> dict[str, object]:
        return {}


@pytest.mark.parametrize("mini_batch_size", quick([None, 3], None))
@pytest.mark.parametrize("recipe", quick(TRAINED, "Starbucks"))
def test_a_column_paired_with_itself_trains(
    tiny: SentenceTransformer, recipe: str, mini_batch_size: int | None, tmp_path: Path
) -> None:
    model = noisy(tiny)
    before = badness(model, TRAINED[recipe])
    loss = RECIPES[recipe](model, mini_batch_size=mini_batch_size)
    train(model, loss, tmp_path, paired_with_themselves(), batch_sampler="no_duplicates", max_steps=20)
    after = badness(model, TRAINED[recipe])
    assert after < 0.9 * before, (before, after)


@pytest.mark.parametrize(("count", "mini_batch_size"), [(2, None), (3, None), (3, 2), (3, 64)])
def test_each_equal_column_has_its_own_noise(tiny: SentenceTransformer, count: int, mini_batch_size: int | None) -> None:
    """Three columns: the second and third share a forward pass, but not their embeddings."""
    sizes = [Size(1, 8), Size(4, 32)]
    seen = {}
    for share in (0.0, 0.1):
        model, spy = noisy(tiny, share), Spy()
        task = MultipleNegativesRankingLoss(model)
        MultiSizeLoss(model, task, sizes, [spy], mini_batch_size=mini_batch_size)(twice(model, count))
        assert len(spy.seen) == len(sizes)
        seen[share] = spy.seen
    for columns in seen[0.0]:
        assert all(torch.allclose(columns[0], other, atol=1e-6) for other in columns[1:])
    for columns in seen[0.1]:
        for left in range(count):
            for right in range(left):
                difference = (columns[left] - columns[right]).abs().amax(dim=1)
                assert bool((difference > 1e-3).all()), "some text has the same noise in two columns"


@pytest.mark.parametrize("recipe", TRAINED)
def test_the_second_pass_replays_the_noise_of_each_column(tiny: SentenceTransformer, recipe: str) -> None:
    """One mini-batch per column draws the same noise as the plain loss, so the gradients must agree."""
    model = noisy(tiny).double()
    found = []
    plain = RECIPES[recipe](model).double()
    parameters = plain.state_dict()
    for loss in (plain, RECIPES[recipe](model, mini_batch_size=64).double()):
        loss.load_state_dict(parameters)
        seed_draws(loss, 5)
        parts = loss(twice(model))
        found.append((total(parts).item(), gradients(loss, total(parts))))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-9)
    assert_gradients_close(found[0][1], found[1][1], 1e-9)
