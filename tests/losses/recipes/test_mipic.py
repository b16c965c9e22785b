"""MIPIC compared with its equations, written as loops: values and all gradients, including projections."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from st_matryoshka2d import Size
from st_matryoshka2d.losses import MIPICLoss
from tests.support import oracles_mipic as oracle
from tests.support.losses import assert_gradients_close, gradients, total
from tests.support.quick import quick
from tests.support.tokens import (
    HALVES,
    Case,
    assert_close_in_half_precision,
    assert_not_zero,
    assert_parts_close,
    by_hand,
    embeddings,
    features,
    physical_tokens,
)

# Defaults for 4 layers x 32: the ladder, and gammas evenly from 0.2 to 0.7.
DEFAULTS: dict[str, Any] = {
    "layers": [1, 2, 3, 4],
    "checkpoints": [(1, 4), (2, 8), (3, 16), (4, 32)],
    "dims": [4, 8, 16, 32],
    "gammas": [0.2, 0.45, 0.7],
    "alpha": 0.4,
    "temperature": 0.05,
    "attention_temperature": 1.0,
    "sia": True,
    "pic": True,
}
UNEVEN = {"layers": [2, 4], "checkpoints": [(1, 8), (3, 24), (4, 32)], "dims": [8, 24, 32], "gammas": [0.3, 0.6]}

CASES = {
    "one column": Case(columns=1),
    "one column, Normalize": Case(columns=1, normalize=True),
    "two columns": Case(),
    "three columns": Case(columns=3),
    "first and last layers": Case(layers=None),
    "CLS": Case(pooling="cls"),
    "Normalize": Case(normalize=True),
    "CLS, Normalize, three columns": Case(columns=3, pooling="cls", normalize=True),
    "pre-norm": Case(family="modernbert", pooling="cls"),
    "pre-norm, mean, Normalize": Case(family="modernbert", normalize=True),
    "pre-norm, last token, padded on the left": Case(family="qwen3", pooling="lasttoken", padding_side="left"),
    "without SIA": Case(arguments={"sia": False}),
    "without PIC": Case(arguments={"pic": False}),
    "only MRL": Case(arguments={"sia": False, "pic": False}),
    "uneven": Case(arguments=UNEVEN),
    "top-k at the edge of a whole number": Case(arguments={**UNEVEN, "gammas": [0.56, 0.6]}),
    "one layer": Case(arguments={**DEFAULTS, "layers": [3]}),
    "every checkpoint at full width": Case(
        arguments={**UNEVEN, "dims": [8, 32], "gammas": [0.6], "checkpoints": [(1, 32), (3, 32), (4, 32)]}
    ),
    "other constants": Case(arguments={"alpha": 0.7, "temperature": 0.2, "attention_temperature": 0.3}),
    "gradient caching": Case(columns=3, arguments={"mini_batch_size": 2}),
    "gradient caching, Normalize": Case(normalize=True, arguments={"mini_batch_size": 3}),
}

pytestmark = pytest.mark.filterwarnings("ignore:MIPICLoss trains")

ONE = [[7], [9], [11], [7]]
SAME = [[7] * 12, [9] * 9, [11] * 20, [8] * 12]
MIXED = [[7] * 12, [9], list(range(5, 27)), [8, 8], [6, 9] * 6]
DEGENERATE = {"one token": (ONE, False), "identical tokens": (SAME, False), "mixed": (MIXED, True)}


def build(case: Case, folder: Path, dtype: torch.dtype = torch.float64) -> tuple[MIPICLoss, Any]:
    """Build the loss with random projections, and the oracle of its wrapped loss."""
    model = case.model(folder).to(dtype)
    wrapped, task = case.wrapped(model)
    arguments = dict(case.arguments)
    if "checkpoints" in arguments:
        arguments["checkpoints"] = [Size(*checkpoint) for checkpoint in arguments["checkpoints"]]
    loss = MIPICLoss(model, wrapped, kept_layers=case.layers, **arguments)
    if dtype == torch.float64:
        loss.double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, parameter in own_parameters(loss, case.arguments):
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return loss, task


def own_parameters(loss: MIPICLoss, arguments: dict[str, Any]) -> list[tuple[str, nn.Parameter]]:
    """Return P and phi with their names in the loss."""
    own = list(loss.P.values()) if arguments.get("sia", True) else []
    own += list(loss.phi.parameters()) if arguments.get("pic", True) else []
    assert all(parameter.requires_grad for parameter in own)
    return [(name, parameter) for name, parameter in loss.named_parameters() if any(parameter is one for one in own)]


def expected(loss: MIPICLoss, case: Case, task: Any, batch: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    set_to = DEFAULTS | case.arguments
    tokens = physical_tokens(loss.model, batch, case.layers)
    raw, final = (embeddings(loss.model, tokens, normalize) for normalize in (False, True))
    parts = {"mrl": set_to["alpha"] * oracle.mrl(final[4], set_to["dims"], task)}
    rest, columns = 1 - set_to["alpha"], range(len(batch))
    if set_to["sia"]:
        below = set_to["dims"][:-1]
        P, tau_a = {d: loss.P[str(d)] for d in below}, set_to["attention_temperature"]  # noqa: N806
        each = [(*tokens[n][c], raw[n][c]) for n in set_to["layers"] for c in columns]
        attention = [oracle.sia_attention(*one, P, tau_a) for one in each]
        cka = [oracle.sia_cka(*one, below, set_to["gammas"], tau_a) for one in each]
        parts["sia_attention"] = rest * sum(attention, torch.zeros(())) / len(columns)
        parts["sia_cka"] = rest * sum(cka, torch.zeros(())) / len(columns)
    if set_to["pic"]:
        phi = [oracle.projector(list(one.parameters())) for one in loss.phi]
        chains = [
            oracle.pic([raw[n][c][:, :d] for n, d in set_to["checkpoints"]], phi, set_to["temperature"]) for c in columns
        ]
        parts["pic"] = rest * sum(chains, torch.zeros(())) / len(columns)
    return parts


def assert_every_projection_moves(loss: MIPICLoss, case: Case, found: dict[str, Tensor]) -> None:
    names = [name for name, _ in own_parameters(loss, case.arguments)]
    still = [name for name in names if name not in found or float(found[name].abs().max()) < 1e-6]
    assert not still, "a gradient of zero would prove nothing"


REPEATED = {"one column", "one column, Normalize", "two columns", "three columns", "CLS", "Normalize", "pre-norm"}
REPEATED |= {"only MRL", "one layer", "gradient caching"}  # the other cases contain these


@pytest.mark.parametrize("name", quick(CASES, *(CASES.keys() - REPEATED)))
def test_mipic_matches_equations_1_to_18(name: str, tmp_path: Path) -> None:
    """Scales the loss by three, like a Trainer: a gradient computed too early would miss the factor."""
    case = CASES[name]
    loss, task = build(case, tmp_path)
    batch = features(loss.model, case.columns)
    wanted = expected(loss, case, task, batch)
    assert_not_zero(wanted)
    parts = loss([dict(column) for column in batch], None)
    assert_parts_close(parts, wanted, rel=1e-5, abs=1e-5)
    theirs = gradients(loss, 3 * total(wanted))
    assert_every_projection_moves(loss, case, theirs)
    assert_gradients_close(gradients(loss, 3 * total(parts)), theirs, case.tolerance)


@pytest.mark.parametrize("part", ["mrl", "sia_attention", "sia_cka", "pic"])
def test_gradient_of_each_part(part: str, tmp_path: Path) -> None:
    """In the sum, a large part could hide an error in a small part."""
    case = CASES["uneven"]
    loss, task = build(case, tmp_path)
    batch = features(loss.model, case.columns)
    theirs = gradients(loss, expected(loss, case, task, batch)[part])
    ours = gradients(loss, loss([dict(column) for column in batch], None)[part])
    assert_gradients_close(ours, theirs, case.tolerance)


@pytest.mark.parametrize("dtype", quick([torch.float64, torch.float32], torch.float32))
@pytest.mark.parametrize("arguments", [{}, {"mini_batch_size": 2}], ids=["whole", "gradient caching"])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_sentences(name: str, arguments: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    """Without position embeddings, a repeated token has one state: no geometry, but no error."""
    rows, matters = DEGENERATE[name]
    case = Case(columns=2, arguments=arguments)
    loss, task = build(case, tmp_path, dtype)
    with torch.no_grad():
        loss.model[0].model.embeddings.position_embeddings.weight.zero_()
    batch = [by_hand(rows), by_hand(rows[::-1])]
    reference = copy.deepcopy(loss).double()
    wanted = expected(reference, case, task, batch)
    assert (float(wanted["sia_cka"].detach()) > 1e-3) == matters
    assert (float(wanted["sia_attention"].detach()) > 1e-3) == matters
    parts = loss([dict(column) for column in batch], None)
    assert_parts_close(parts, wanted, rel=1e-5, abs=1e-5)
    exact = dtype == torch.float64
    assert_gradients_close(
        gradients(loss, total(parts)), gradients(reference, total(wanted)), tolerance=1e-6 if exact else 1e-3
    )


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", quick(["one column", "two columns", "Normalize", "pre-norm"], "two columns"))
def test_half_precision(name: str, half: str, tmp_path: Path) -> None:
    case = CASES[name]
    loss, task = build(case, tmp_path, HALVES[half].weights)
    batch = features(loss.model, case.columns)
    wanted = expected(copy.deepcopy(loss).double(), case, task, batch)
    found = assert_close_in_half_precision(half, loss, batch, wanted)
    assert_every_projection_moves(loss, case, found)
