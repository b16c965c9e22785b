"""Every recipe with accumulated gradients, several data sets, evaluation, and half precision by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CoSENTLoss
from torch import Tensor
from transformers import TrainerCallback

from st_matryoshka2d.losses import MultiSizeLoss, RelationalDistillLoss, StarbucksLoss
from tests.support.families import TEXTS
from tests.support.losses import assert_gradients_close, exact, gradients, seed_draws, total
from tests.support.quick import quick
from tests.support.training import OLD, RECIPES, Watch, pairs, train

pytestmark = pytest.mark.filterwarnings("ignore:MIPICLoss trains")


class Gradients(TrainerCallback):
    """Records the gradients that the optimizer receives."""

    def __init__(self, loss: MultiSizeLoss) -> None:
        self.loss = loss
        self.seen: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        found = {name: p.grad.clone() for name, p in self.loss.named_parameters() if p.grad is not None}
        self.seen.append(found)


@pytest.mark.parametrize("mini_batch_size", [None, 2])
@pytest.mark.parametrize("recipe", quick(RECIPES, "2DMSE", "MIPIC"))
def test_an_accumulated_gradient_is_the_mean(
    tiny: SentenceTransformer, recipe: str, mini_batch_size: int | None, tmp_path: Path
) -> None:
    """For parameters of the model, and of the loss, whose gradients do not come from the second embedding pass."""
    loss = RECIPES[recipe](exact(tiny), mini_batch_size=mini_batch_size).double()
    batches: list[list[dict[str, Any]]] = []

    def remember(_: Any, args: Any) -> None:
        seed_draws(loss, len(batches))
        batches.append([dict(column) for column in args[0]])

    keep = loss.register_forward_pre_hook(remember)
    callback = Gradients(loss)
    # Without a learning rate the weights stay, so that the batches can be repeated.
    settings = {"max_steps": 1, "gradient_accumulation_steps": 2, "learning_rate": 0.0, "max_grad_norm": 0.0}
    train(tiny, loss, tmp_path, callbacks=[callback], **settings)
    keep.remove()
    assert len(batches) == 2
    mean: dict[str, Tensor] = {}
    for number, columns in enumerate(batches):
        seed_draws(loss, number)
        for name, gradient in gradients(loss, total(loss(columns))).items():
            mean[name] = mean.get(name, 0) + gradient / 2
    assert all(bool(mean[name].any()) for name in loss.own)
    assert_gradients_close(callback.seen[0], mean, 1e-9)


def texts_and_scores() -> Dataset:
    return Dataset.from_dict({"a": TEXTS * 2, "b": OLD * 2, "score": [0.9, 0.1, 0.5, 0.4, 0.3] * 2})


@pytest.mark.parametrize("sampler", quick(["proportional", "round_robin"], "proportional"))
@pytest.mark.parametrize("recipe", quick(RECIPES, "MIPIC"))
def test_each_data_set_has_its_loss(tiny: SentenceTransformer, recipe: str, sampler: str, tmp_path: Path) -> None:
    losses = {
        "pairs": RECIPES[recipe](tiny),
        "scored": StarbucksLoss(tiny, CoSENTLoss(tiny), mini_batch_size=2),
        "texts": RelationalDistillLoss(tiny),
    }
    datasets = {"pairs": pairs(), "scored": texts_and_scores(), "texts": Dataset.from_dict({"text": TEXTS * 2})}
    calls: list[tuple[str, int]] = []
    for name, loss in losses.items():
        loss.register_forward_pre_hook(lambda module, args, name=name: calls.append((name, len(args[0]))))
    watch = Watch(tiny, recipe)
    own = {name: parameter.detach().clone() for name, parameter in losses["pairs"].own.items()}
    train(tiny, losses, tmp_path, datasets, max_steps=30, multi_dataset_batch_sampler=sampler)
    assert set(calls) == {("pairs", 2), ("scored", 2), ("texts", 1)}
    watch.assert_learned()
    assert not [name for name, before in own.items() if torch.equal(before, losses["pairs"].own[name])]


@pytest.mark.parametrize("recipe", quick(RECIPES, "Espresso"))
def test_evaluation_is_the_loss_and_changes_nothing(tiny: SentenceTransformer, recipe: str, tmp_path: Path) -> None:
    """Includes gradient caching, which caches no gradients in evaluation."""
    metrics = []
    for mini_batch_size in (None, 2):
        torch.manual_seed(4)  # MIPIC's predictors start at random
        loss = RECIPES[recipe](tiny, mini_batch_size=mini_batch_size)
        data = {"a": pairs(), "b": pairs()}
        trainer = train(tiny, loss, tmp_path, eval_dataset=data, max_steps=1, learning_rate=0.0)
        torch.manual_seed(4)
        metrics.append({key: value for key, value in trainer.evaluate().items() if key.endswith("loss")})
        assert all(math.isfinite(value) and value > 0 for value in metrics[-1].values())
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-5)


@pytest.mark.parametrize("recipe", quick(RECIPES, "Starbucks"))
def test_float16_autocast(tiny: SentenceTransformer, recipe: str) -> None:
    """Uses autocast directly: with fp16=True on a CPU the Trainer silently computes in single precision."""
    watch = Watch(tiny, recipe)
    loss = RECIPES[recipe](tiny)
    optimizer = torch.optim.AdamW([p for p in loss.parameters() if p.requires_grad], lr=1e-3)
    tiny.train()
    for _ in range(15):
        with torch.autocast("cpu", torch.float16):
            parts = loss([tiny.preprocess(TEXTS), tiny.preprocess(OLD)])
        assert all(bool(torch.isfinite(value)) for value in parts.values())
        optimizer.zero_grad()
        total(parts).backward()
        optimizer.step()
    watch.assert_learned()
