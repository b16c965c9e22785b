"""Gradient caching matches the whole batch for every recipe and term, including the loss's own parameters and dropout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_matryoshka2d import Size
from st_matryoshka2d.losses import (
    PIC,
    SIA,
    EspressoLoss,
    KLAlignment,
    MIPICLoss,
    MultiSizeLoss,
    PCACompression,
    RelationalDistill,
    RelationalDistillLoss,
    StarbucksLoss,
    TwoDMSELoss,
)
from tests.support.losses import assert_gradients_close, gradients, seed_draws, total
from tests.support.quick import quick
from tests.support.tokens import Case, features

pytestmark = pytest.mark.filterwarnings("ignore:.* trains .* tensors of its own", "ignore:.* does not train the full size")

TOLERANCE = 1e-8


SIZES = [Size(2, 8), Size(3, 20), Size(4, 32)]


Make = Callable[[SentenceTransformer, nn.Module, int | None], MultiSizeLoss]


def with_terms(*terms: Callable[[], Any]) -> Make:
    return lambda model, task, size: MultiSizeLoss(model, task, SIZES, [t() for t in terms], mini_batch_size=size)


LOSSES: dict[str, Make] = {
    "Starbucks": lambda model, task, size: StarbucksLoss(model, task, mini_batch_size=size),
    "2DMSE": lambda model, task, size: TwoDMSELoss(model, task, mini_batch_size=size),
    "Espresso": lambda model, task, size: EspressoLoss(model, task, mini_batch_size=size),
    "MIPIC": lambda model, task, size: MIPICLoss(model, task, mini_batch_size=size),
    "RelationalDistill": lambda model, task, size: RelationalDistillLoss(model, mini_batch_size=size),
    "SIA": with_terms(SIA),
    "PIC": with_terms(PIC),
    "PIC, target detached": with_terms(lambda: PIC(SIZES, detach_target=True)),
    "PCACompression": with_terms(PCACompression),
    "RelationalDistill, across": with_terms(lambda: RelationalDistill(across=0.5)),
    "all terms": with_terms(KLAlignment, SIA, PCACompression, PIC, RelationalDistill),
}


def build(make: Make, case: Case, folder: Path) -> MultiSizeLoss:
    """Build a loss with random own parameters, and a teacher that differs from the model."""
    model = case.model(folder).double()
    loss = make(model, case.wrapped(model)[0], 1).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in loss.own.values():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return loss


def parts_of(
    loss: MultiSizeLoss, batch: list[dict[str, Any]], mini_batch_size: int | None, num_tokens: int | None = None
) -> dict[str, Tensor]:
    for module in [loss, *(term for term in loss.terms if isinstance(term, RelationalDistill))]:
        module.mini_batch_size = mini_batch_size
        module.mini_batch_num_tokens = num_tokens
    seed_draws(loss, 1)  # 2DMSE draws
    return loss(batch)


def results(
    loss: MultiSizeLoss, batch: list[dict[str, Any]], mini_batch_size: int | None = None, num_tokens: int | None = None
) -> tuple[dict[str, float], dict[str, Tensor]]:
    parts = parts_of(loss, [dict(column) for column in batch], mini_batch_size, num_tokens)
    found = gradients(loss, total(parts))
    assert all(bool(found[name].any()) for name in loss.own), "a gradient of zero would prove nothing"
    return {name: part.item() for name, part in parts.items()}, found


def assert_alike(
    loss: MultiSizeLoss,
    batch: list[dict[str, Any]],
    sizes: list[int],
    tolerance: float = TOLERANCE,
    num_tokens: int | None = None,
) -> None:
    expected, theirs = results(loss, batch)
    for mini_batch_size in sizes:
        found, ours = results(loss, batch, mini_batch_size, num_tokens)
        assert list(found) == list(expected)
        assert found == pytest.approx(expected, rel=0, abs=tolerance)
        assert_gradients_close(ours, theirs, tolerance)


@pytest.mark.parametrize("columns", quick([1, 2, 3], 3))
@pytest.mark.parametrize("name", quick(LOSSES, "2DMSE", "RelationalDistill, across", "all terms"))
def test_caching_changes_no_part_and_no_gradient(name: str, columns: int, tmp_path: Path) -> None:
    loss = build(LOSSES[name], Case(columns=columns), tmp_path)
    assert_alike(loss, features(loss.model, columns), [1, 2, 64])


def rows_embedded(loss: MultiSizeLoss, batch: list[dict[str, Any]], **settings: Any) -> list[tuple[int, int]]:
    """Return texts and unpadded tokens of each forward pass in the first pass over the batch."""
    seen: list[tuple[int, int]] = []
    with torch.no_grad(), loss.model[0].register_forward_pre_hook(lambda _, args: seen.append(shape(args[0]))):
        parts_of(loss, batch, **settings)
    return seen


def shape(column: dict[str, Any]) -> tuple[int, int]:
    return len(column["attention_mask"]), int(column["attention_mask"].sum())


@pytest.mark.parametrize("num_tokens", quick([1, 9, 1000], 9))
@pytest.mark.parametrize("name", quick(LOSSES, "RelationalDistill, across", "MIPIC"))
def test_mini_batches_of_tokens_change_no_part_and_no_gradient(name: str, num_tokens: int, tmp_path: Path) -> None:
    loss = build(LOSSES[name], Case(), tmp_path)
    # num_tokens takes precedence
    assert_alike(loss, features(loss.model, 2), [64], num_tokens=num_tokens)


def test_a_limit_of_tokens_takes_precedence(tmp_path: Path) -> None:
    """The mini-batches themselves are those of `hosts/test_sentence_transformers.py`."""
    loss = build(LOSSES["Starbucks"], Case(), tmp_path)
    batch = features(loss.model, 2)
    most = max(int(column["attention_mask"].sum(dim=1).max()) for column in batch) + 3
    seen = rows_embedded(loss, batch, mini_batch_size=2, num_tokens=most)
    assert sum(rows for rows, _ in seen) == 2 * len(batch[0]["input_ids"])
    assert all(tokens <= most for _, tokens in seen)
    assert any(rows > 2 for rows, _ in seen), "short texts share a mini-batch"


OTHER_CASES = {
    "Normalize": Case(normalize=True),
    "CLS": Case(pooling="cls"),
    "last token, padded on the left": Case(family="qwen3", pooling="lasttoken", padding_side="left", normalize=True),
    "pre-norm": Case(family="modernbert"),
}


NAMES = ["Starbucks", "2DMSE", "Espresso", "MIPIC", "RelationalDistill"]


@pytest.mark.parametrize("case", OTHER_CASES)
@pytest.mark.parametrize("name", quick(NAMES, "MIPIC"))
def test_in_other_pipelines(name: str, case: str, tmp_path: Path) -> None:
    loss = build(LOSSES[name], OTHER_CASES[case], tmp_path)
    assert_alike(loss, features(loss.model, 2), [2], 1e-5)


@pytest.mark.parametrize("name", quick(NAMES, "2DMSE", "MIPIC"))
def test_with_gradient_checkpointing_and_a_prompt_that_is_not_pooled(name: str, tmp_path: Path) -> None:
    loss = build(LOSSES[name], Case(), tmp_path)
    loss.model[0].model.activation_checkpointing_enable()
    loss.model.set_pooling_include_prompt(False)
    lengths = [2, torch.full((5,), 2)]  # types from a Dataset and from a stream
    batch = [{**column, "prompt_length": n} for column, n in zip(features(loss.model, 2), lengths, strict=True)]
    assert_alike(loss, batch, [2])


@pytest.mark.parametrize("name", quick(["MIPIC", "all terms"], "MIPIC"))
def test_steps_do_not_mix(name: str, tmp_path: Path) -> None:
    """Two forward passes before a backward pass: each has the gradients of its own batch."""
    loss = build(LOSSES[name], Case(), tmp_path)
    batches = features(loss.model, 2), features(loss.model, 3)
    each = [results(loss, batch)[1] for batch in batches]
    expected = {key: value + each[1][key] for key, value in each[0].items()}
    first, second = (total(parts_of(loss, batch, 2)) for batch in batches)
    assert_gradients_close(gradients(loss, first + second), expected, TOLERANCE)


@pytest.mark.parametrize("mini_batch_size", quick([None, 2], None))
@pytest.mark.parametrize("name", quick(LOSSES, "Starbucks", "all terms"))
def test_a_last_batch_of_one_text_has_finite_gradients(name: str, mini_batch_size: int | None, tmp_path: Path) -> None:
    """Without other texts a softmax may be empty; its value must not reach the weights."""
    loss = build(LOSSES[name], Case(), tmp_path)
    parts = parts_of(loss, [loss.model.preprocess([text]) for text in ("the cat sat", "a dog")], mini_batch_size)
    total(parts).backward()
    assert all(bool(torch.isfinite(part)) for part in parts.values())
    assert all(bool(torch.isfinite(p.grad).all()) for p in loss.parameters() if p.grad is not None)


@pytest.mark.parametrize("recipe", [StarbucksLoss, TwoDMSELoss, EspressoLoss, MIPICLoss])
def test_every_recipe_takes_tokens(recipe: Any, tmp_path: Path) -> None:
    model = Case().model(tmp_path)
    loss = recipe(model, Case().wrapped(model)[0], mini_batch_num_tokens=16)
    assert (loss.is_cached, loss.get_config_dict()["mini_batch_num_tokens"]) == (True, 16)
    term = RelationalDistillLoss(model, mini_batch_size=2, mini_batch_num_tokens=16).terms[0]
    assert (term.mini_batch_size, term.mini_batch_num_tokens) == (2, 16)
