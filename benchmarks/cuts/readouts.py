"""Readouts for embeddings of any selection of layers: what `align` fits for the first layers, fitted for others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from st_matryoshka2d.readout_fit import Affine, Sums, damped, fit_readout, refined, shared_rotation

__all__ = ["read_out"]

Rows = NDArray[np.floating]
_STEPS = 300


def read_out(by_depth: Mapping[int, Rows], whole: Rows, texts: int) -> dict[int, Rows]:
    """Map embeddings of several depths into the space of the whole model.

    Args:
        by_depth: Embeddings by number of layers, (texts + fitting texts, dim).
        whole: Embeddings of the whole model, of unit length, in the same order.
        texts: Number of texts; readouts are fitted on the rows after them.
    """
    rows = {depth: torch.tensor(np.asarray(part)).float() for depth, part in by_depth.items()}
    states = {depth: part[texts:] for depth, part in rows.items()}
    goal = torch.tensor(np.asarray(whole)).float()[texts:]
    fitted = {depth: _fit(state, goal) for depth, state in states.items()}
    spread = torch.stack(
        [one.weight.double() @ sums.covariance @ one.weight.double().T for one, sums in fitted.values()]
    ).sum(0)
    turn = shared_rotation(spread).float()
    goal = goal @ turn.T
    start = {depth: one.then(turn) for depth, (one, _) in fitted.items()}
    better = refined(start, states, goal, {}, _STEPS, "cpu", True)
    final = {depth: damped(one, fitted[depth][1].covariance, goal.var(0)) for depth, one in better.items()}
    return {depth: one(rows[depth]).numpy() for depth, one in final.items()}


def _fit(state: Tensor, goal: Tensor) -> tuple[Affine, Sums]:
    held_out = torch.rand(len(state), generator=torch.Generator().manual_seed(0)) < 0.1
    sums = [Sums(state.shape[1]) for _ in range(2)]
    for part, chosen in zip(sums, (~held_out, held_out), strict=True):
        part.add(state[chosen], goal[chosen])
    return fit_readout(*sums), sums[0] + sums[1]
