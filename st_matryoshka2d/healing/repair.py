"""Refit the linear maps of a cut in order, each on the states that the refitted ones before it give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.base.model import BaseModel
from torch import Tensor, nn
from torch.nn import functional as F

from st_matryoshka2d.aligning.sample import Text
from st_matryoshka2d.encoding.progress import progress
from st_matryoshka2d.healing.blocks import Block, Branch, find_blocks
from st_matryoshka2d.healing.regress import Sums, best_change
from st_matryoshka2d.healing.states import Batches, Place, Reached, reached, read, tokens_of_texts
from st_matryoshka2d.model.backbone import find_backbone
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.sizes import full_size

if TYPE_CHECKING:
    from jaxtyping import Float

_PASSES = 3  # through the whole model that all texts together get
_MANY = 2000  # texts that are used whatever it takes
_ROOM = 2**30  # bytes of the states to reach
_HELD = 9  # one text is left out for so many, to choose strengths by


@dataclass(frozen=True)
class Fit:
    """One regression: a linear map of the cut, and the sum of the whole model that its own should be.

    Attributes:
        linear: What is refitted.
        own: Where its own sum is read.
        goal: Where the whole model's is read.
        norm: The norm that reads the own sum and forgets its scale, if one does.
        goal_norm: The whole model's, whose weights it takes over.
        cut: The model that is changed.
        layers: How many layers of the cut a text passes through.
    """

    linear: nn.Linear
    own: Place
    goal: Place
    norm: nn.LayerNorm | None
    goal_norm: nn.LayerNorm | None
    cut: BaseModel
    layers: int

    def change(self, seen: Sequence[Reached], held: Sequence[Reached], bar: Any) -> None:
        """Change the linear map and the norm, in place."""
        has_bias = self.linear.bias is not None
        sums = [Sums(self.linear.in_features + has_bias, self.linear.out_features) for _ in range(2)]
        for of_part, batches in zip(sums, (seen, held), strict=True):
            for features, states in batches:
                z, own = read(self.cut, features, [Place(self.linear, is_input=True), self.own])
                goal, length = self._to_reach(own, states[self.goal])
                if has_bias:
                    z = torch.cat([z, z.new_ones(len(z), 1)], 1)
                # texts count alike, as they do in pooling: otherwise long ones, which are rarely queries, rule the fit
                scale = length * tokens_of_texts(features).sqrt()
                of_part.add(z / scale, (goal - own) / scale)
                bar.update(1)
        change = best_change(*sums, has_bias=has_bias).to(self.linear.weight)
        self.linear.weight.add_(change[: self.linear.in_features].T)
        if has_bias:
            self.linear.bias.add_(change[-1])
        if self.norm is not None and self.goal_norm is not None:
            self.norm.load_state_dict(self.goal_norm.state_dict())

    def _to_reach(
        self, own: Float[Tensor, "tokens hidden"], goal: Float[Tensor, "tokens hidden"]
    ) -> tuple[Float[Tensor, "tokens hidden"], Float[Tensor, "tokens 1"]]:
        """Return what the own sums should be, and their lengths: what reads a state normalises it."""
        if self.goal_norm is None:
            return goal, goal.square().mean(1, keepdim=True).sqrt().clamp(min=1e-12)
        # that norm forgets mean and scale of each token, so they stay
        mean, spread = own.mean(1, keepdim=True), own.std(1, keepdim=True, correction=0).clamp(min=1e-12)
        return mean + spread * F.layer_norm(goal, goal.shape[1:], eps=self.goal_norm.eps), spread


def fits(whole: BaseModel, cut: BaseModel, kept: Sequence[int]) -> list[Fit]:
    """List the regressions of a cut that keeps these layers, counted from 0, in the order in which they are made."""
    theirs, ours = _Layers.of(whole), _Layers.of(cut)
    made: list[Fit] = []
    for place, number in enumerate(kept):
        end = kept[place + 1] if place + 1 < len(kept) else len(theirs.blocks)
        *attention, last = ours.known[place].branches
        starts_exact = list(kept[: place + 1]) == list(range(place + 1))
        if not starts_exact:
            made.extend(_fit(ours, place, branch, theirs, number, branch) for branch in attention)
        if (not starts_exact or end > place + 1) and ours.known[place].is_read_as_it_is:
            made.append(_fit(ours, place, last, theirs, end - 1, theirs.known[end - 1].last))
    return made


@dataclass(frozen=True)
class _Layers:
    """The blocks of a model, and what is known of them."""

    model: BaseModel
    blocks: Sequence[nn.Module]
    known: Sequence[Block]

    @classmethod
    def of(cls, model: BaseModel) -> _Layers:
        network: Any = Pipeline.of(model, BaseModel).transformer.model
        backbone = find_backbone(network)
        return cls(model, backbone.blocks_of(network), find_blocks(network, backbone))

    def sum_of(self, number: int, branch: Branch) -> tuple[Place, nn.LayerNorm | None]:
        """Return where the sum of a branch is read, and the norm that forgets its scale."""
        block = self.blocks[number]
        if not branch.norm:
            return Place(block, is_input=False), None
        norm: Any = block.get_submodule(branch.norm)
        return Place(norm, is_input=True), norm if self.known[number].is_post_norm else None


def _fit(ours: _Layers, place: int, branch: Branch, theirs: _Layers, number: int, goal: Branch) -> Fit:
    linear: Any = ours.blocks[place].get_submodule(branch.linear)
    own, norm = ours.sum_of(place, branch)
    read_at, goal_norm = theirs.sum_of(number, goal)
    return Fit(linear, own, read_at, norm, goal_norm, ours.model, place + 1)


def repair(
    planned: Sequence[Fit],
    whole: BaseModel,
    seen: Sequence[Text],
    held: Sequence[Text],
    batch_size: int,
    hidden: bool | None,
) -> None:
    """Make regressions in their order, in place, with as many of the texts as there is time and room for."""
    passes = 1 + sum(fit.layers for fit in planned) / full_size(whole).num_layers
    count = max(_MANY, int(_PASSES / passes * len(seen)))
    goals = {fit.goal for fit in planned}
    parts = [(seen[:count], _ROOM), (held[: 1 + count // _HELD], _ROOM // _HELD)]
    batches = [Batches(whole, texts, batch_size) for texts, _ in parts]
    with progress("Reading the whole model", sum(map(len, batches)), "batches", hidden) as bar:
        some, others = (reached(whole, of, goals, room, bar) for of, (_, room) in zip(batches, parts, strict=True))
    with progress("Healing layers", len(planned) * (len(some) + len(others)), "batches", hidden) as bar:
        for fit in planned:
            fit.change(some, others, bar)
