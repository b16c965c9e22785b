"""The sizes that a step trains, given or drawn. An evaluation draws nothing: it has the mean of all draws."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import Size
from st_matryoshka2d.losses import (
    PIC,
    SIA,
    FixedSizes,
    KLAlignment,
    MIPICLoss,
    MultiSizeLoss,
    PCACompression,
    RelationalDistill,
    RelationalDistillLoss,
    SizeSampler,
    StarbucksLoss,
    Term,
    UniformSizes,
)
from tests.support import oracles
from tests.support.losses import batch, exact, physical_columns
from tests.support.quick import quick
from tests.support.training import RECIPES, Falling, pairs, train

pytestmark = pytest.mark.filterwarnings("ignore:.* trains .* tensors of its own", "ignore:.* does not train the full size")

DIMS = [8, 16]


class OneOf(SizeSampler):
    """A sampler of a user's own, which knows nothing of evaluation."""

    candidates = [Size(1, 8), Size(3, 20), Size(4, 32)]  # noqa: RUF012

    def draw(self) -> dict[Size, float]:
        return {self.candidates[int(torch.randint(3, ()))]: 1.0}

    def get_config_dict(self) -> dict[str, object]:
        return {}


def with_sampler(sampler: SizeSampler, terms: Callable[[], list[Term]], model: SentenceTransformer) -> MultiSizeLoss:
    return MultiSizeLoss(model, MultipleNegativesRankingLoss(model), sampler, terms())


def uniform() -> UniformSizes:
    return UniformSizes(Size(4, 32), DIMS, (0.5, 2, 0.1, 3))


LOSSES: dict[str, Callable[[SentenceTransformer], MultiSizeLoss]] = {
    **RECIPES,
    "2DMSE, gradient caching": lambda model: RECIPES["2DMSE"](model, mini_batch_size=2),
    "a sampler of one's own": partial(with_sampler, OneOf(), lambda: [KLAlignment()]),
    "2DMSE's sizes and a teacher": partial(with_sampler, uniform(), lambda: [RelationalDistill(across=0.5)]),
}


# the others draw nothing in training either
DRAWING = ["2DMSE", "2DMSE, gradient caching", "a sampler of one's own"]


def set_to_evaluate(model: SentenceTransformer, how: str) -> torch.autograd.grad_mode.set_grad_enabled:
    model.train(how == "no gradients")
    return torch.set_grad_enabled(how == "evaluation mode")


class Told(SizeSampler):
    """A sampler that draws what it is told to."""

    candidates = UniformSizes(Size(4, 32), DIMS).candidates

    def draw(self) -> dict[Size, float]:
        return self.told

    def get_config_dict(self) -> dict[str, object]:
        return {}


TERMS: dict[str, Callable[[], list[Term]]] = {
    "mean of divergences": lambda: [KLAlignment(temperature=0.1)],
    "sum of divergences": lambda: [KLAlignment(temperature=0.1, teacher="last_layer", reduction="sum")],
    "teacher": lambda: [RelationalDistill(temperature=0.1, across=0.5)],
    "compression": lambda: [PCACompression()],
    "tokens and a chain": lambda: [SIA(), PIC()],
}


@pytest.mark.parametrize("how", ["evaluation mode", "no gradients"])
@pytest.mark.parametrize("terms", TERMS)
def test_terms_evaluate_mean_over_every_draw(tiny: SentenceTransformer, terms: str, how: str) -> None:
    """A loop of training steps, one for each draw, has this mean; `test_equations.py` has the steps of 2DMSE."""
    model = exact(tiny)
    torch.manual_seed(2)
    loss = with_sampler(uniform(), TERMS[terms], model).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # otherwise a teacher agrees
    sampler = loss.sampler
    loss.sampler = told = Told()
    steps = []
    for n in (1, 2, 3):
        for d in DIMS:
            told.told = dict(zip([Size(4, 32), Size(n, 32), Size(4, d), Size(n, d)], (0.5, 2, 0.1, 3), strict=True))
            steps.append(loss(batch(model, 2)))
    loss.sampler = sampler
    loss.mini_batch_size = 2 if how == "no gradients" else None
    with set_to_evaluate(model, how):
        found = loss(batch(model, 2))
    assert list(found) == list(steps[0])
    for name, part in found.items():
        mean = torch.stack([step[name].detach() for step in steps]).mean()
        assert part.item() == pytest.approx(mean.item(), rel=1e-6), name
        assert part.item() > 1e-6


def test_own_sampler_evaluates_mean_over_candidates(tiny: SentenceTransformer) -> None:
    model = exact(tiny).eval()
    parts = with_sampler(OneOf(), list, model)(batch(model, 2))
    by_layer = physical_columns(model, 2)
    alone = [oracles.mnrl(oracles.at(by_layer, *size)) for size in ((1, 8), (3, 20), (4, 32))]
    assert parts["task"].item() == pytest.approx(torch.stack(alone).mean().item(), abs=1e-6)


def test_fixed_sizes_evaluate_as_they_train(tiny: SentenceTransformer) -> None:
    model = exact(tiny)
    loss = with_sampler(FixedSizes(["2L-8d", "4L-32d"], "4L-32d", [0.3, 2], reduction="sum"), lambda: [KLAlignment()], model)
    trained = loss(batch(model, 2))
    evaluated = loss.eval()(batch(model, 2))
    assert {name: part.item() for name, part in evaluated.items()} == {name: part.item() for name, part in trained.items()}


@pytest.mark.parametrize("how", ["evaluation mode", "no gradients"])
@pytest.mark.parametrize("name", quick(LOSSES, *DRAWING))
def test_repeated_evaluation_is_equal_and_draws_nothing(tiny: SentenceTransformer, name: str, how: str) -> None:
    loss = LOSSES[name](tiny)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with set_to_evaluate(tiny, how):
        found = [{part: value.item() for part, value in loss(batch(tiny, 2)).items()} for _ in range(4)]
    assert found[1:] == found[:-1]
    assert torch.equal(torch.get_rng_state(), before)


def trained(start: SentenceTransformer, recipe: str, folder: Path, **settings: Any) -> Any:
    model = copy.deepcopy(start)
    torch.manual_seed(0)
    loss = RECIPES[recipe](model)
    return train(model, loss, folder, max_steps=6, **settings)


@pytest.mark.parametrize("evaluator", [False, True], ids=["data", "evaluator"])
@pytest.mark.parametrize("recipe", quick(RECIPES, "2DMSE"))
def test_trainer_ends_with_same_weights_with_and_without_evaluation(
    tiny: SentenceTransformer, recipe: str, evaluator: bool, tmp_path: Path
) -> None:
    """Bit-identical; at steps, at the end of epochs of four steps, and before the first step."""
    given: dict[str, Any] = {"evaluator": Falling()} if evaluator else {"eval_dataset": pairs()}
    without = trained(tiny, recipe, tmp_path)
    by_step = trained(tiny, recipe, tmp_path, eval_strategy="steps", eval_steps=1, eval_on_start=True, **given)
    by_epoch = trained(tiny, recipe, tmp_path, eval_strategy="epoch", **given)
    expected = without.model.state_dict()
    for trainer in (by_step, by_epoch):
        found = trainer.model.state_dict()
        assert [name for name, value in expected.items() if not torch.equal(value, found[name])] == []
    if not evaluator:
        logged = [entry for entry in by_step.state.log_history if "eval_loss" in entry]
        assert len(logged) == 7
        assert all({"eval_" + name for name in by_step.loss(batch(tiny, 2))} <= entry.keys() for entry in logged)
        assert {by_step.evaluate()["eval_loss"] for _ in range(2)} == {logged[-1]["eval_loss"]}


AS_TEXT = ["2L-8d", "4L-32d"]
AS_SIZES = [Size(2, 8), Size(4, 32)]
TAKERS: dict[str, Callable[[SentenceTransformer, MultipleNegativesRankingLoss, list[Size | str]], MultiSizeLoss]] = {
    "MultiSizeLoss": lambda model, task, sizes: MultiSizeLoss(model, task, sizes),
    "FixedSizes": lambda model, task, sizes: MultiSizeLoss(model, task, FixedSizes(sizes, sizes[-1])),
    "UniformSizes": lambda model, task, sizes: MultiSizeLoss(model, task, UniformSizes(sizes[-1], [8])),
    "PIC": lambda model, task, sizes: MultiSizeLoss(model, task, sizes, [PIC(sizes)]),
    "StarbucksLoss": lambda model, task, sizes: StarbucksLoss(model, task, sizes),
    "RelationalDistillLoss": lambda model, task, sizes: RelationalDistillLoss(model, sizes=sizes, loss=task),
    "MIPICLoss": lambda model, task, sizes: MIPICLoss(model, task, [2, 4], sizes, [8, 32], [0.5]),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_losses_take_sizes_and_their_text(tiny: SentenceTransformer, taker: str) -> None:
    made = [TAKERS[taker](tiny, MultipleNegativesRankingLoss(tiny), [*sizes]) for sizes in (AS_SIZES, AS_TEXT)]
    assert made[0].get_config_dict() == made[1].get_config_dict()
    assert made[0].sampler.candidates == made[1].sampler.candidates


def test_2dmse_draws_every_layer_below_the_last_and_every_dim_below_the_full() -> None:
    torch.manual_seed(0)
    sampler = UniformSizes(Size(4, 32), [8, 16])
    draws = [list(sampler.draw()) for _ in range(300)]
    assert all(full == Size(4, 32) for full, *_ in draws)
    drawn = [small for *_, small in draws]
    counts = {size: drawn.count(size) for size in set(drawn)}
    assert set(counts) == {Size(n, d) for n in (1, 2, 3) for d in (8, 16)}
    assert all(25 <= count <= 80 for count in counts.values()), counts
    assert {size for draw in draws for size in draw} <= set(sampler.candidates)


def test_draws_follow_the_seed_and_nothing_else_that_is_random() -> None:
    drawn = []
    for others in (0, 3):
        torch.manual_seed(0)
        sampler = UniformSizes(Size(12, 768), [8, 16, 32])
        drawn.append([(torch.rand(others), sampler.draw())[1] for _ in range(5)])
    assert drawn[0] == drawn[1]
