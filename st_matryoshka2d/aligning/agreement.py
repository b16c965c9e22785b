"""Whether there are enough texts to align a model: how well its depths agree with the whole model on texts left out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from st_matryoshka2d.aligning.gather import Gathered
from st_matryoshka2d.aligning.ridge import Affine, Sums, fit_readout

_FOLDS = 4
_LEAST = 12  # fewer different texts cannot be judged: a part has less than three
_FEW = 100  # with fewer, other texts than these may get worse even if these get better
_PER_DIM, _MOST = 2, 2000  # different texts per dim of the model, and in all, that are enough without measuring
_COPY = 0.2  # near copies are closer than this share of the median squared distance
_DEPTHS = 5  # depths that are measured


def agreement(
    embedded: Float[Tensor, "held dim"], whole: Float[Tensor, "texts dim"], held: Int[Tensor, " held"]
) -> Float[Tensor, " held"]:
    """For each of some texts, correlate its similarities to all others with those that the whole model gives it.

    Args:
        embedded: These texts, embedded by a depth.
        whole: All texts, embedded by the whole model. Both kinds of embeddings are compared with these.
        held: Where these texts are among all.
    """
    known = normalize(whole)
    others = torch.arange(len(whole)) != held.unsqueeze(1)
    by_depth, by_whole = ((normalize(rows) @ known.T)[others].view(len(held), -1) for rows in (embedded, whole[held]))
    return cosine_similarity(by_depth - by_depth.mean(1, keepdim=True), by_whole - by_whole.mean(1, keepdim=True))


def held_out_agreement(states: Float[Tensor, "texts dim"], whole: Float[Tensor, "texts dim"]) -> tuple[float, float]:
    """Return the mean agreement without and with a readout; the readout of each text is fitted on other texts."""
    before, after = [], []
    for held in torch.randperm(len(states), generator=torch.Generator().manual_seed(0)).tensor_split(_FOLDS):
        seen = torch.ones(len(states), dtype=torch.bool)
        seen[held] = False
        before.append(agreement(states[held], whole, held))
        after.append(agreement(_regression(states[seen], whole[seen])(states[held]), whole, held))
    return float(torch.cat(before).mean()), float(torch.cat(after).mean())


def too_few(gathered: Mapping[str, Gathered], unit: bool) -> str | None:
    """Tell what was measured if there are too few texts to align a model; None if there are enough."""
    return next((told for route in gathered.values() if (told := _told(route, unit))), None)


def _told(route: Gathered, unit: bool) -> str | None:
    enough = min(_PER_DIM * route.dim, _MOST)
    drawn = torch.randperm(len(route.sample), generator=torch.Generator().manual_seed(0))[: 2 * enough]
    sample = route.sample[drawn.sort().values]  # a sorted file has its near copies together
    sample = sample[_different(sample[:, -1])]
    if len(sample) >= enough or route.num_layers == 1:
        return None
    total = route.sums(1).count
    there = (
        f"{total:,} texts"
        if len(sample) == total
        else f"{total:,} texts, of which about {len(sample):,} are not near copies,"
    )
    advice = "Pass some 10,000 texts like those you will embed."
    if len(sample) < _LEAST:
        return f"{there} are too few to align a model well, or to measure what it does; sizes usually get worse. {advice}"
    whole = normalize(sample[:, -1]) if unit else sample[:, -1]
    depths = sorted({int(depth) for depth in torch.linspace(1, route.num_layers - 1, _DEPTHS).round()})
    measured = {depth: held_out_agreement(sample[:, depth - 1], whole) for depth in depths}
    if len(sample) >= _FEW and all(after >= before for before, after in measured.values()):
        return None
    changes = ", ".join(f"{depth}L {before:.2f} to {after:.2f}" for depth, (before, after) in measured.items())
    return (
        f"{there} are too few to align this model well. On texts left out of the fit, the correlation of each depth's "
        f"similarities with the whole model's, with the same layers without and with the fit: {changes}. {advice}"
    )


def _different(embedded: Float[Tensor, "texts dim"]) -> Bool[Tensor, " texts"]:
    """Mark the texts that are not near copies of earlier ones."""
    unit = normalize(embedded)
    distances = 1 - unit @ unit.T
    pairs = distances[torch.ones_like(distances, dtype=torch.bool).triu(1)]
    return ~(distances <= _COPY * pairs.median()).tril(-1).any(1)


def _regression(states: Float[Tensor, "texts dim"], whole: Float[Tensor, "texts dim"]) -> Affine:
    """Fit a readout as `align` does, with the strength chosen on every tenth text."""
    tenth = torch.arange(len(states)) % 10 == 9
    parts = [Sums(states.shape[1]) for _ in range(2)]
    for sums, rows in zip(parts, (~tenth, tenth), strict=True):
        sums.add(states[rows], whole[rows])
    return fit_readout(*parts)
