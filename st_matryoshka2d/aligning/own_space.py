"""Fit the maps of all depths of a model into its own space, and measure what they keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from st_matryoshka2d.aligning.agreement import agreement_within, too_few
from st_matryoshka2d.aligning.refine import Refinement, refined
from st_matryoshka2d.aligning.ridge import MANY, Affine, Fitted, calibrated, fit_readout, less_shifted
from st_matryoshka2d.aligning.rotation import Rotation, chosen_rotation, neighbours
from st_matryoshka2d.aligning.sample import Gathered
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Fit:
    """What is put into a model.

    Attributes:
        readouts: The maps of all depths, by route.
        agreement: How well each size agrees with what it was fitted to.
        told: Warnings about the texts.
        hidden: A layer in front of the maps.
        unit: Whether embeddings have length 1.
        rotated: Whether the coordinates of the whole model changed.
    """

    readouts: Mapping[str, Mapping[int, Affine]]
    agreement: Mapping[Size, float]
    told: Sequence[str] = ()
    hidden: nn.Linear | None = None
    unit: bool = False
    rotated: bool = False


def fit(
    gathered: Mapping[str, Gathered], rotation: Rotation | None, refinement: Refinement, total: int, *, unit: bool
) -> Fit:
    """Fit all routes in one rotation; `total` is the number of texts, near copies too."""
    with torch.device("cpu"):  # whatever the user's default
        whole = {name: route.whole for name, route in gathered.items()}
        if unit:
            whole = {name: normalize(rows) for name, rows in whole.items()}
        regressed: dict[str, dict[int, Fitted]] = {}
        for name, route in gathered.items():
            depths = range(1, route.num_layers)
            regressed[name] = {depth: fit_readout(route.at(depth), whole[name]) for depth in depths}
        fits = [fitted for by_depth in regressed.values() for fitted in by_depth.values()]
        predicted = [fitted.predicted for fitted in fits] or [*whole.values()]
        covariances = [torch.cov(rows.T.double(), correction=0) for rows in predicted]
        name, first = next(iter(gathered.items()))
        close = (_mapped(rows, regressed[name]) for rows in first.close)
        pairs = {"similarity": (next(close), next(close)), "search": neighbours(first.whole)}
        turn = chosen_rotation(torch.stack(covariances).sum(0), pairs, rotation)
        readouts: dict[str, dict[int, Affine]] = {}
        for name, route in gathered.items():
            regressed[name] = _finished(regressed[name], route, whole[name], turn, refinement)
            readouts[name] = _scaled(regressed[name], route)
            readouts[name][route.num_layers] = Affine(turn, turn.new_zeros(len(turn)))
        by_route = [agreement_within(regressed[name], whole[name] @ turn.T) for name in gathered]
        agreement = {size: fmean(route[size] for route in by_route) for size in by_route[0]}
        few = too_few(next(iter(regressed.values())), first.states, total)
        rotated = not torch.equal(turn, torch.eye(len(turn)).to(turn))
        told = [few] if few else []
        return Fit(readouts, agreement, told, unit=unit, rotated=rotated)


def _mapped(rows: Float[Tensor, "texts layers dim"], fitted: Mapping[int, Fitted]) -> Float[Tensor, "texts layers dim"]:
    """Map all depths but the last into the space of the whole model."""
    mapped = [by_depth.readout(rows[:, depth - 1]) for depth, by_depth in fitted.items()]
    return torch.stack([*mapped, rows[:, -1]], dim=1)


def _finished(
    regressed: Mapping[int, Fitted],
    route: Gathered,
    whole: Float[Tensor, "texts dim"],
    turn: Float[Tensor, "dim dim"],
    refinement: Refinement,
) -> dict[int, Fitted]:
    """Rotate, refine if there are many texts, calibrate the maps of a route, and shift less."""
    whole = whole @ turn.T
    turned = {
        depth: Fitted(by_depth.readout.then(turn), by_depth.held, by_depth.predicted @ turn.T)
        for depth, by_depth in regressed.items()
    }
    if turned and refinement.steps and len(whole) > MANY:
        seen = torch.ones(len(whole), dtype=torch.bool)
        seen[next(iter(turned.values())).held] = False
        states = {depth: route.at(depth)[seen] for depth in turned}
        readouts = {depth: by_depth.readout for depth, by_depth in turned.items()}
        for depth, readout in refined(readouts, states, whole[seen], refinement).items():
            held = turned[depth].held
            turned[depth] = Fitted(readout, held, readout(route.at(depth)[held]))
    finished = {}
    for depth, by_depth in turned.items():
        true = whole[by_depth.held]
        finished[depth] = less_shifted(calibrated(by_depth, true), true)
    return finished


def _scaled(fitted: Mapping[int, Fitted], route: Gathered) -> dict[int, Affine]:
    """Give embeddings the length that the whole model's have before a final `Normalize`."""
    length = route.whole.norm(dim=1).mean()
    scaled = {}
    for depth, by_depth in fitted.items():
        own = by_depth.readout(route.at(depth)).norm(dim=1).mean().clamp(min=1e-12)
        scaled[depth] = by_depth.readout.times(float(length / own))
    return scaled
