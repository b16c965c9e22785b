"""Fit the maps of all depths of a model, and measure what they keep."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from st_matryoshka2d.aligning.agreement import kept_agreement, too_few
from st_matryoshka2d.aligning.calibration import calibrated
from st_matryoshka2d.aligning.close_pairs import neighbours
from st_matryoshka2d.aligning.gather import Gathered
from st_matryoshka2d.aligning.refine import Refinement, refined
from st_matryoshka2d.aligning.ridge import MANY, Affine, Fitted, fit_readout
from st_matryoshka2d.aligning.rotation import Rotation, chosen_rotation
from st_matryoshka2d.sizes import Size


def fitted(
    gathered: Mapping[str, Gathered], rotation: Rotation | None, refinement: Refinement, *, unit: bool
) -> tuple[dict[str, dict[int, Affine]], dict[Size, float], str | None]:
    """Return the maps of all depths by route, what each size keeps, and a warning if the texts are too few."""
    with torch.device("cpu"):  # whatever the user's default
        whole = {name: normalize(route.whole) if unit else route.whole for name, route in gathered.items()}
        regressed = {name: _regressed(route, whole[name]) for name, route in gathered.items()}
        predicted = [each.predicted for by_depth in regressed.values() for each in by_depth.values()] or [*whole.values()]
        spread = torch.stack([torch.cov(rows.T.double(), correction=0) for rows in predicted]).sum(0)
        first = next(iter(gathered.values()))
        pairs = {"similarity": first.close, "search": neighbours(first.whole)}
        turn = chosen_rotation(spread, pairs, rotation)
        made: dict[str, dict[int, Affine]] = {}
        for name, route in gathered.items():
            regressed[name] = _finished(regressed[name], route, whole[name], turn, refinement)
            length = route.whole.norm(dim=1).mean()  # as the whole model has it before a final Normalize
            made[name] = {route.num_layers: Affine(turn, turn.new_zeros(route.dim))}
            for depth, each in regressed[name].items():
                found = each.readout(route.at(depth)).norm(dim=1).mean().clamp(min=1e-12)
                made[name][depth] = each.readout.times(float(length / found))
        by_route = [kept_agreement(regressed[name], whole[name] @ turn.T) for name in gathered]
        kept = {size: sum(measured[size] for measured in by_route) / len(by_route) for size in by_route[0]}
        return made, kept, too_few(next(iter(regressed.values())), first.states, first.total)


def _regressed(route: Gathered, whole: Float[Tensor, "texts dim"]) -> dict[int, Fitted]:
    return {depth: fit_readout(route.at(depth), whole) for depth in range(1, route.num_layers)}


def _finished(
    regressed: Mapping[int, Fitted],
    route: Gathered,
    whole: Float[Tensor, "texts dim"],
    turn: Float[Tensor, "dim dim"],
    refinement: Refinement,
) -> dict[int, Fitted]:
    """Rotate, refine if there are many texts, and calibrate the maps of a route."""
    turned = {
        depth: Fitted(each.readout.then(turn), each.held, each.predicted @ turn.T) for depth, each in regressed.items()
    }
    if turned and refinement.steps and len(whole) > MANY:
        seen = torch.ones(len(whole), dtype=torch.bool)
        seen[next(iter(turned.values())).held] = False
        states = {depth: route.at(depth)[seen] for depth in turned}
        refined_to = refined({n: each.readout for n, each in turned.items()}, states, (whole @ turn.T)[seen], refinement)
        turned = {
            depth: Fitted(readout, turned[depth].held, readout(route.at(depth)[turned[depth].held]))
            for depth, readout in refined_to.items()
        }
    return {depth: calibrated(each, (whole @ turn.T)[each.held]) for depth, each in turned.items()}
