"""The regression from sums, and a whole healing, against loops that keep all rows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_matryoshka2d import heal
from st_matryoshka2d.healing import regress
from st_matryoshka2d.healing.regress import Sums, best_change
from tests.support import families

pytestmark = pytest.mark.filterwarnings("ignore:.*different texts or pairs are few")


def rows(seed: int, noise: float) -> tuple[Tensor, Tensor]:
    """Make inputs, and what a map of them misses."""
    draw = torch.Generator().manual_seed(seed)
    z = torch.cat([torch.randn(60, 5, generator=draw), torch.ones(60, 1)], 1)
    truth = torch.arange(12.0).view(6, 2) / 12
    return z, z @ truth + noise * torch.randn(60, 2, generator=draw)


def summed(z: Tensor, missing: Tensor) -> Sums:
    sums = Sums(z.shape[1], missing.shape[1])
    for part in range(0, len(z), 7):
        sums.add(z[part : part + 7], missing[part : part + 7])
    return sums


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("strength", regress._STRENGTHS)
def test_equals_least_squares_with_more_rows(strength: float, has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ridge regression is least squares with a row for each coefficient, whose goal is zero."""
    monkeypatch.setattr(regress, "_STRENGTHS", (strength,))
    z, missing = rows(0, 0.1)
    found = best_change(summed(z, missing), summed(*rows(1, 0.1)), has_bias=has_bias)
    inputs = z[:, :-1] if has_bias else z
    size = np.sqrt(strength * (inputs.double() ** 2).sum(0).mean().item())
    more = size * np.diag([1.0] * 5 + [0.0 if has_bias else 1.0])
    wide = np.concatenate([z.double().numpy(), more])
    expected, *_ = np.linalg.lstsq(wide, np.concatenate([missing.double().numpy(), np.zeros((6, 2))]), rcond=None)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_the_strength_is_the_best_on_other_rows() -> None:
    (z, missing), (other, wanted) = rows(0, 3.0), rows(1, 3.0)
    errors = {}
    for strength in regress._STRENGTHS:
        penalty = strength * (z[:, :-1].double() ** 2).sum(0).mean() * torch.diag(torch.tensor([1.0] * 5 + [0.0])).double()
        change = torch.linalg.solve(z.T.double() @ z.double() + penalty, z.T.double() @ missing.double())
        errors[strength] = float((wanted - other.double() @ change).square().sum()), change
    _, expected = min(errors.values(), key=lambda pair: pair[0])
    found = best_change(summed(z, missing), summed(other, wanted), has_bias=True)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_nothing_changes_if_nothing_helps() -> None:
    z, missing = rows(0, 0.0)
    assert not best_change(summed(z, missing), summed(z, -missing), has_bias=True).any()


def test_the_first_map_is_that_of_a_loop(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a BERT of which the first and the last block stay, the last map of the first one, text by text, without padding."""
    monkeypatch.setattr(regress, "_STRENGTHS", (0.01,))
    texts = [" ".join(random.Random(n).choices(families.WORDS, k=2 + n % 7)) for n in range(200)]
    healed = heal(tiny, texts, num_layers=2)
    network: Any = tiny[0].model
    first, norm = network.encoder.layer[0], network.encoder.layer[2].output.LayerNorm
    order = list(dict.fromkeys(texts))
    random.Random(0).shuffle(order)
    inputs, wanted = [], []
    for text in order[len(order) // 10 :]:
        with torch.no_grad():
            found = network(**tiny.preprocess([text]), output_hidden_states=True)
            middle = first.attention(found.hidden_states[0])[0]
            z = first.intermediate(middle)[0].double().numpy()
            own = (first.output.dense(first.intermediate(middle)) + middle)[0].double().numpy()
            after = found.hidden_states[3][0].double().numpy()
        goal = (after - norm.bias.detach().numpy()) / norm.weight.detach().numpy()
        spread, mean = own.std(1, keepdims=True), own.mean(1, keepdims=True)
        share = spread * np.sqrt(len(z))  # a text counts as any other
        inputs.append(np.concatenate([z, np.ones((len(z), 1))], 1) / share)
        wanted.append((mean + spread * goal - own) / share)
    rows = np.concatenate(inputs)
    more = np.sqrt(0.01 * (rows[:, :-1] ** 2).sum(0).mean()) * np.diag([1.0] * 48 + [0.0])
    change, *_ = np.linalg.lstsq(np.concatenate([rows, more]), np.concatenate([*wanted, np.zeros((49, 32))]), rcond=None)
    ours: Any = healed[0].model
    output, before = ours.encoder.layer[0].output, first.output.dense
    np.testing.assert_allclose((output.dense.weight - before.weight).detach().numpy(), change[:-1].T, atol=2e-3)
    np.testing.assert_allclose((output.dense.bias - before.bias).detach().numpy(), change[-1], atol=2e-3)
    assert torch.equal(output.LayerNorm.weight, norm.weight)
    for name, weight in ours.encoder.layer[0].attention.named_parameters():
        assert torch.equal(weight, first.attention.get_parameter(name)), "what reads exact states stays"
