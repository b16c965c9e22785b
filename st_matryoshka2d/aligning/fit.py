"""Fit the maps of all depths of a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize

from st_matryoshka2d.aligning.gather import Gathered
from st_matryoshka2d.aligning.refine import refined
from st_matryoshka2d.aligning.ridge import Affine, fit_readout
from st_matryoshka2d.aligning.rotation import damped, shared_rotation


def fitted(
    gathered: Mapping[str, Gathered],
    small: Mapping[int, list[int]],
    steps: int,
    device: torch.device,
    *,
    unit: bool,
    keep: bool,
    hide_progress_bar: bool | None,
) -> dict[str, dict[int, Affine]]:
    """Fit the maps of all depths, by route; the full depth gets the rotation, or stays as it is if `keep`."""
    regressed = {name: _regressed(route) for name, route in gathered.items()}
    turn = shared_rotation(torch.stack([spread for _, spread in regressed.values()]).sum(0)).float()
    if keep:
        turn = torch.eye(len(turn)).to(turn)
    made: dict[str, dict[int, Affine]] = {}
    for name, route in gathered.items():
        whole = route.sample[:, -1] @ turn.T
        length, variances = whole.norm(dim=1).mean(), (normalize(whole) if unit else whole).var(0)
        states = {depth: route.sample[:, depth - 1] for depth in range(1, route.num_layers)}
        start = {depth: readout.then(turn) for depth, readout in regressed[name][0].items()}
        better = refined(start, states, whole, small, steps, device, hide_progress_bar) if steps else start
        made[name] = {route.num_layers: Affine(turn, turn.new_zeros(route.dim))}
        for depth, readout in better.items():
            readout = damped(readout, route.sums(depth).covariance, variances)
            shrunk = readout(states[depth]).norm(dim=1).mean()  # by the regression
            made[name][depth] = readout.times(float(length / shrunk))
    return made


def _regressed(route: Gathered) -> tuple[dict[int, Affine], Tensor]:
    """Return the readouts by regression, and the summed covariance of their outputs; for one layer, of the model's."""
    readouts = {n: fit_readout(route.fitted[n - 1], route.held_out[n - 1]) for n in range(1, route.num_layers)}
    slopes = {n: readout.weight.double() for n, readout in readouts.items()}
    slopes = slopes or {1: torch.eye(route.dim, dtype=torch.float64, device="cpu")}
    return readouts, torch.stack([slope @ route.sums(n).covariance @ slope.T for n, slope in slopes.items()]).sum(0)
