"""Script for `test_distributed.py`: compare losses on two processes with one process."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from st_matryoshka2d import Size
from st_matryoshka2d.losses import (
    EspressoLoss,
    LossStateCallback,
    MIPICLoss,
    MultiSizeLoss,
    RelationalDistillLoss,
    StarbucksLoss,
    TwoDMSELoss,
)
from st_matryoshka2d.losses.saved_state import own_parameters
from tests.support import families
from tests.support.losses import seed_draws
from tests.support.tokens import texts
from tests.support.training import train

Columns = list[dict[str, Any]]
Named = dict[str, Tensor]
Recipe = Callable[[SentenceTransformer, nn.Module, int | None], nn.Module]


class ByDepth(nn.Module):
    """A module with separate maps for the full depth and for other depths, and an unused map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.full, self.shallow, self.neither = (nn.Linear(width, width) for _ in range(3))

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        # only at full depth
        used = self.full if "all_layer_embeddings" in features else self.shallow
        return {**features, "sentence_embedding": used(features["sentence_embedding"])}


def by_depth(*sizes: Size) -> Recipe:
    """Return a recipe for these sizes of a model with `ByDepth`."""

    def recipe(model: SentenceTransformer, task: nn.Module, mini_batch_size: int | None) -> nn.Module:
        model.append(ByDepth(32))
        return MultiSizeLoss(model, task, sizes, mini_batch_size=mini_batch_size)

    return recipe


RECIPES: dict[str, Recipe] = {
    "Starbucks": lambda model, task, size: StarbucksLoss(model, task, mini_batch_size=size),
    "2DMSE": lambda model, task, size: TwoDMSELoss(model, task, dims=[4, 8, 16], mini_batch_size=size),
    "Espresso": lambda model, task, size: EspressoLoss(model, task, mini_batch_size=size),
    "MIPIC": lambda model, task, size: MIPICLoss(model, task, mini_batch_size=size),
    "RelationalDistill": lambda model, task, size: RelationalDistillLoss(model, mini_batch_size=size),
    "RelationalDistill, across": lambda model, task, size: RelationalDistillLoss(model, mini_batch_size=size, across=0.5),
    # The last layers do not affect the loss.
    "a shallow size": lambda model, task, size: MultiSizeLoss(model, task, [Size(2, 16)], mini_batch_size=size),
    "maps by depth": by_depth(Size(2, 16), Size(4, 32)),
    "maps by depth, a shallow size": by_depth(Size(2, 16)),
    # Not a loss of the package: a failure means that the test's set-up is wrong.
    "MultipleNegativesRanking": lambda model, task, size: (
        CachedMultipleNegativesRankingLoss(model, mini_batch_size=size) if size else task
    ),
}


@dataclass(frozen=True)
class Case:
    """One loss in one setting."""

    recipe: str
    mini_batch_size: int | None
    gathered: bool

    def __str__(self) -> str:
        cached, gathered = "cached" if self.mini_batch_size else "plain", "gathered" if self.gathered else "apart"
        return f"{self.recipe}, {cached}, {gathered}"


CASES = [Case(recipe, size, gathered) for recipe in RECIPES for size in (None, 2) for gathered in (False, True)]
ACCUMULATION = (1, 2)


def compared(folder: Path) -> dict[str, Any]:
    """Return what one process expects, and what it finds with the other."""
    rank = int(os.environ["RANK"])
    # Before the process group exists: later only the first process saves, and the other finds
    # nothing to load.
    model, noisy = _model(folder / f"exact-{rank}", dropout=0.0).double(), _model(folder / f"noisy-{rank}", dropout=0.1)
    halves = [[_features(model, texts(3 * half + column)[:4]) for column in range(3)] for half in range(2)]
    whole = [_features(model, texts(column)[:4] + texts(3 + column)[:4]) for column in range(3)]
    losses = {(case.recipe, case.mini_batch_size): _loss(case, model) for case in CASES if not case.gathered}
    result: dict[str, Any] = {"expected": {}, "found": {}}
    for recipe in RECIPES if rank == 0 else ():
        for gathered, batches in (False, halves), (True, [whole]):
            result["expected"][recipe, gathered] = _alone(losses[recipe, None], batches)
        result["expected"][recipe, "uneven"] = _alone(losses[recipe, None], [halves[0][:2], halves[1]])

    distributed.init_process_group("gloo")
    for (recipe, size), loss in losses.items():
        _spread(loss, rank)
        for gathered, passes in (True, 1), (False, 2):  # errors of one pass may show in the next
            # Reuse the loss, because verifying a cut is slow.
            getattr(loss, "loss", loss).gather_across_devices = gathered
            found = _together(loss, halves[rank], rank, passes)
            result["found"][str(Case(recipe, size, gathered))] = found
        # Datasets with and without negatives, so that one process has more mini-batches than the
        # other.
        result["found"][recipe, size] = _together(loss, halves[rank][: 2 + rank], rank)
    loss = _loss(Case("maps by depth", None, False), model)
    loss.model[0].model.pooler.requires_grad_(False)  # which no loss uses
    _spread(loss, rank, find_unused_parameters=False)
    result["all awaited"] = _together(loss, halves[rank], rank, passes=2)["model"]
    result["drawn"], result["drawn_alone"] = _drawn(losses["2DMSE", None], rank)
    result["trained"] = {}
    for steps in ACCUMULATION:
        run = folder / f"run-{steps}"
        result["trained"][steps] = {
            "start": {"model": dict(noisy.state_dict())},
            "whole": _trained(noisy, run, steps, seed=rank),
            "resumed": _trained(noisy, run, steps, seed=7 + rank, checkpoint=run / "checkpoint-2"),
        }
    return result


def _model(folder: Path, dropout: float) -> SentenceTransformer:
    config = families.CONFIGS["bert"]()
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    return families.pipeline(config, folder, pooling="mean", dense=None, normalize=True).train()


def _features(model: SentenceTransformer, column: list[str]) -> dict[str, Any]:
    # A dict, as the Trainer collates: in other types DistributedDataParallel finds no tensors, and
    # treats all parameters as unused.
    return dict(model.preprocess(column))


def _loss(case: Case, model: SentenceTransformer) -> Any:
    """Build the loss on a copy of the model."""
    copied = copy.deepcopy(model)
    torch.manual_seed(0)  # for MIPIC's projectors
    return RECIPES[case.recipe](copied, MultipleNegativesRankingLoss(copied), case.mini_batch_size).double()


def _backward(loss: nn.Module, columns: Columns, share: float = 1.0) -> None:
    value = loss([dict(column) for column in columns], None)
    total = torch.stack(list(value.values())).sum() if isinstance(value, dict) else value
    (total * share).backward()


def _gradients(loss: Any) -> dict[str, Named]:
    """Return and clear the gradients of the model and of the loss's own parameters."""
    named = {"model": dict(loss.model.named_parameters()), "own": own_parameters(loss)}
    found = {
        whose: {name.removeprefix("module."): p.grad for name, p in parameters.items() if p.grad is not None}
        for whose, parameters in named.items()
    }
    assert found["own"].keys() == named["own"].keys(), "not all that the loss trains has a gradient"
    loss.zero_grad()
    return found


def _alone(loss: Any, batches: list[Columns]) -> dict[str, Named]:
    """Return gradients of one process, without caching or gathering: of the whole batch, or the mean of its halves."""
    for batch in batches:
        seed_draws(loss, 3)  # for the sizes that 2DMSE draws
        _backward(loss, batch, 1 / len(batches))
    return _gradients(loss)


def _spread(loss: Any, rank: int, find_unused_parameters: bool = True) -> None:
    """Wrap the loss as the Trainer does, which allows unused parameters. The second process has other projectors."""
    for parameter in own_parameters(loss).values() if rank else ():
        parameter.data.normal_()
    wrapped = DistributedDataParallel(loss.model, find_unused_parameters=find_unused_parameters, broadcast_buffers=False)
    for module in (loss, getattr(loss, "loss", None)):
        if hasattr(module, "model"):
            module.model = wrapped


def _together(loss: Any, half: Columns, rank: int, passes: int = 1) -> dict[str, Named]:
    """Return gradients of two processes with different random states, accumulated over the passes."""
    for _ in range(passes):
        seed_draws(loss, 3 + rank)
        _backward(loss, half, 1 / passes)
    return _gradients(loss)


def _drawn(loss: Any, rank: int) -> tuple[list[list[str]], list[int]]:
    """Return the sizes drawn with generators in different states, and what these generators give without sharing."""
    generator = loss.sampler.generator.manual_seed(100 + rank)
    drawn = [[str(size) for size in loss.sampler.draw()] for _ in range(20)]
    return drawn, torch.randint(100, (20,), generator=generator).tolist()


def _trained(
    start: SentenceTransformer, folder: Path, accumulation: int, seed: int, checkpoint: Path | None = None
) -> dict[str, Named]:
    """Return the result of four steps of the Trainer, which alone sets seeds."""
    model = copy.deepcopy(start)
    torch.manual_seed(seed)
    loss = MIPICLoss(model, MultipleNegativesRankingLoss(model))
    rows = [row for column in range(5) for row in texts(column)] * 2
    dataset = Dataset.from_dict({"anchor": rows, "positive": [f"old {row}" for row in rows]})
    settings = {
        "max_steps": 4,
        "gradient_accumulation_steps": accumulation,
        "save_strategy": "steps",
        "save_steps": 2,
        "use_cpu": True,
        "ddp_backend": "gloo",
        "dataloader_drop_last": True,
        "resume": checkpoint and str(checkpoint),
    }
    train(model, loss, folder, dataset, [LossStateCallback(loss)], **settings)
    own = {name: parameter.detach() for name, parameter in own_parameters(loss).items()}
    return {"model": dict(model.state_dict()), "own": own}
