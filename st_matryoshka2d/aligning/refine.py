"""Refine readouts by gradient descent, so that they relate texts as the whole model does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from st_matryoshka2d.aligning.ridge import Affine
from st_matryoshka2d.encoding.progress import progress
from st_matryoshka2d.sizes import Size, prefix

if TYPE_CHECKING:
    from jaxtyping import Float

_BATCH = 512  # texts per step of the refinement
_DIMS_PER_STEP = 2  # small dims drawn for a step
_LEARNING_RATE = 3e-4
_TEMPERATURE = 0.55  # of the distances, in standard deviations of the whole model's cosines
_COMPARED = 1000  # texts whose cosines are measured
_SMALL_ANCHOR = 0.4  # at the drawn dims: weight of the distance to the text's own full embedding
# at all dims: weights of the divergence across depths, and of that distance
_ACROSS, _ANCHOR = 6.0, 8.0


@dataclass(frozen=True)
class Refinement:
    """What gradient descent adds to the closed form: for which small dims, in how many steps for each depth, and where."""

    small: Collection[Size]
    steps: int
    device: torch.device
    hide_progress_bar: bool | None


def refined(
    readouts: Mapping[int, Affine],
    states: Mapping[int, Float[Tensor, "texts dim"]],
    whole: Float[Tensor, "texts dim"],
    how: Refinement,
) -> dict[int, Affine]:
    """Refine each readout by gradient descent, also for the given small dims."""
    maps = {}
    temperature = _TEMPERATURE * _spread_of_cosines(whole)
    with progress("Refining readouts", how.steps * len(readouts), "steps", how.hide_progress_bar) as bar:
        for depth, start in readouts.items():
            weight, bias = (nn.Parameter(values.to(how.device, copy=True)) for values in (start.weight, start.bias))
            optimizer = torch.optim.Adam([weight, bias], lr=_LEARNING_RATE)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, how.steps)
            draw = torch.Generator().manual_seed(0)
            shuffled = partial(torch.randperm, generator=draw, device=draw.device)
            dims = [size.dim for size in how.small if size.num_layers == depth]
            for _ in range(how.steps):
                batch = shuffled(len(whole))[:_BATCH]
                drawn = [dims[place] for place in shuffled(len(dims))[:_DIMS_PER_STEP]]
                embedded = F.linear(states[depth][batch].to(how.device), weight, bias)
                loss = _distance(embedded, whole[batch].to(how.device), drawn, temperature)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.update()
            maps[depth] = Affine(weight.detach().to(start.weight.device), bias.detach().to(start.bias.device))
    return maps


def _spread_of_cosines(whole: Float[Tensor, "texts dim"]) -> float:
    """Return the standard deviation of the cosines of different texts: some models keep all of them in a narrow range."""
    unit = F.normalize(whole[:_COMPARED], dim=1)
    return float((unit @ unit.T)[torch.ones(len(unit), len(unit), dtype=torch.bool).triu(1)].std().clamp(min=1e-6))


def _distance(
    embedded: Float[Tensor, "texts dim"], whole: Float[Tensor, "texts dim"], small: Sequence[int], temperature: float
) -> Tensor:
    # KL(s; t) + 6 KL(c; t) + 8 (1 - cos(a, z)): a is the embedding by the readout, z by the whole
    # model; s, t and c are the similarities of different texts by a, by z, and between a and z.
    # With small dims, add the mean over the drawn d of KL(s^d; t) + 1 - rho(s^d, t) + 0.4 (1 -
    # cos(a^d, z^d)), with rho the correlation.
    full, large = F.normalize(whole, dim=1), F.normalize(embedded, dim=1)
    target = _to_others(full, full)
    within, across = (_divergence(_to_others(large, other), target, temperature) for other in (large, full))
    distance = within + _ACROSS * across + _ANCHOR * (1 - (large * full).sum(1).mean())
    parts = []
    for dim in small:
        short = F.normalize(prefix(embedded, dim), dim=1)
        scores = _to_others(short, short)
        to_own = 1 - (short * F.normalize(prefix(whole, dim), dim=1)).sum(1).mean()
        parts.append(_divergence(scores, target, temperature) + _uncorrelated(scores, target) + _SMALL_ANCHOR * to_own)
    return distance + torch.stack(parts).mean() if parts else distance


def _to_others(rows: Float[Tensor, "texts dim"], columns: Float[Tensor, "texts dim"]) -> Float[Tensor, "texts others"]:
    """Compute the similarities of each text to the others, from unit vectors."""
    texts = len(rows)
    return (rows @ columns.T).flatten()[1:].view(texts - 1, texts + 1)[:, :-1].reshape(texts, texts - 1)


def _divergence(scores: Float[Tensor, "texts others"], target: Float[Tensor, "texts others"], temperature: float) -> Tensor:
    """Return the KL divergence of softmaxes from the target's, mean over texts."""
    student, teacher = (F.log_softmax(values / temperature, dim=1) for values in (scores, target))
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True)


def _uncorrelated(scores: Float[Tensor, "texts others"], target: Float[Tensor, "texts others"]) -> Tensor:
    """Return 1 minus the correlation of each text's similarities with the target, averaged over texts."""
    rows, goal = (values - values.mean(1, keepdim=True) for values in (scores, target))
    return 1 - F.cosine_similarity(rows, goal, dim=1).mean()
