"""Chunked cross entropy, compared with torch's over all logits."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from st_matryoshka2d.pretraining import SMAEForPreTraining, cross_entropy
from st_matryoshka2d.pretraining.cross_entropy import vocabulary_cross_entropy
from tests.support.smae import batch, masked_lm

ROWS, HIDDEN, VOCABULARY = 13, 6, 29


class Inputs(NamedTuple):
    states: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    row_weights: Tensor


def inputs(with_bias: bool = True, dtype: torch.dtype = torch.float64) -> Inputs:
    """Return inputs with row weights across five orders of magnitude and duplicate targets."""
    torch.manual_seed(0)
    states, weight = torch.randn(ROWS, HIDDEN, dtype=dtype), torch.randn(VOCABULARY, HIDDEN, dtype=dtype)
    bias = torch.randn(VOCABULARY, dtype=dtype, requires_grad=True) if with_bias else None
    targets = torch.randint(VOCABULARY // 3, (ROWS,))
    return Inputs(states.requires_grad_(), weight.requires_grad_(), bias, targets, torch.logspace(-4, 1, ROWS, dtype=dtype))


def whole(given: Inputs) -> tuple[Tensor, Tensor]:
    logits = functional.linear(given.states, given.weight, given.bias)
    by_row = functional.cross_entropy(logits, given.targets, reduction="none")
    return (by_row * given.row_weights).sum(), by_row


def gradients(loss: Tensor, given: Inputs) -> list[Tensor]:
    wanted = [value for value in given[:3] if value is not None and value.requires_grad]
    return list(torch.autograd.grad(loss, wanted))


@pytest.fixture(params=[1, 4, 5, ROWS], ids=lambda rows: f"{rows} rows at a time")
def chunked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "_LOGITS_AT_A_TIME", request.param * VOCABULARY)


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("with_bias", [True, False])
def test_values_and_gradients_are_those_of_all_logits(with_bias: bool) -> None:
    given = inputs(with_bias)
    loss, by_row = vocabulary_cross_entropy(*given)
    expected, expected_by_row = whole(given)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(by_row, expected_by_row, rtol=1e-12, atol=0)
    assert not by_row.requires_grad
    for found, wanted in zip(gradients(3 * loss, given), gradients(3 * expected, given), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)], ids=str)
def test_frozen_inputs_get_no_gradient(frozen: tuple[int, ...]) -> None:
    given = inputs()
    for index in frozen:
        given[index].requires_grad_(False)
    (loss, _), (expected, _) = vocabulary_cross_entropy(*given), whole(given)
    found = gradients(loss, given)
    assert len(found) == 3 - len(frozen)
    for gradient, wanted in zip(found, gradients(expected, given), strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-11, atol=1e-14)


def test_without_gradients_the_values_are_the_same() -> None:
    given = inputs()
    with torch.no_grad():
        loss, by_row = vocabulary_cross_entropy(*given)
    assert not loss.requires_grad
    torch.testing.assert_close((loss, by_row), whole(given))


def test_large_logits_do_not_overflow() -> None:
    given = inputs()
    far = given._replace(states=(given.states.detach() * 1e4).requires_grad_())
    (loss, _), (expected, _) = vocabulary_cross_entropy(*far), whole(far)
    torch.testing.assert_close(loss, expected)
    for found, wanted in zip(gradients(loss, far), gradients(expected, far), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.usefixtures("chunked")
def test_autocast_to_half_precision_is_close() -> None:
    """Within bfloat16's eight bits; the smallest row weights must not round to zero."""
    given = inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, by_row = vocabulary_cross_entropy(*given)
    expected, expected_by_row = whole(given)
    assert loss.dtype == by_row.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0.02, atol=0)
    torch.testing.assert_close(by_row, expected_by_row, rtol=0.02, atol=0.02)
    of_states, of_weight, of_bias = gradients(loss, given)
    want_states, want_weight, want_bias = gradients(expected, given)
    for found, wanted in [(of_weight, want_weight), (of_bias, want_bias), *zip(of_states, want_states, strict=True)]:
        assert found.dtype == torch.float32
        assert functional.cosine_similarity(found.flatten(), wanted.flatten(), dim=0) > 0.999
        torch.testing.assert_close(found.norm(), wanted.norm(), rtol=0.02, atol=0)


def test_half_precision_weights_get_gradients_of_their_own_type() -> None:
    given = inputs(dtype=torch.bfloat16)
    loss, by_row = vocabulary_cross_entropy(*given)
    expected, _ = whole(Inputs(*(value.detach().float() if value.is_floating_point() else value for value in given)))
    assert by_row.dtype == torch.float32
    torch.testing.assert_close(loss.float(), expected, rtol=0.02, atol=0)
    assert [gradient.dtype for gradient in gradients(loss, given)] == [torch.bfloat16] * 3


def test_no_logits_are_kept_for_the_backward_pass() -> None:
    """In a step of pre-training, no saved tensor has shape (masked tokens, vocabulary)."""
    model, given = SMAEForPreTraining(masked_lm(vocab_size=1009)), batch()
    shapes: list[tuple[int, ...]] = []

    def note(tensor: Tensor) -> Tensor:
        shapes.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(**given).loss
    as_wide = {shape for shape in shapes if 1009 in shape}
    assert as_wide <= {(1009, 32), (32, 1009), (1009,)}, "the embeddings, and the gradient of the output embeddings"
    assert (1009, 32) in as_wide
    loss.backward()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.mlm(**{name: given[name] for name in ("input_ids", "attention_mask", "labels")})
    assert any(shape[-1] == 1009 and len(shape) > 1 and shape[0] != 32 for shape in shapes), (
        "what the model's own loss keeps"
    )
