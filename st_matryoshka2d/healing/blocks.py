"""Find the linear maps that can be refitted in a block. The only file of this room that knows model families.

It knows them by structure, not by name: a linear map ends a branch if whatever is added to its output is added to the state
too, as a trial on a few tokens shows. Then a block is post-norm, if its last norm reads that sum, or pre-norm, if the sum is
the next state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.backbone import Backbone
from st_matryoshka2d.model.copies import same, trial
from st_matryoshka2d.sizes import layered

_SHARE = 1e-3  # of the largest value: more than rounding, less than another structure shows
_OUTPUT = ""  # the sum that is the output of the block


@dataclass(frozen=True)
class Branch:
    """A linear map whose output is added to the state; both paths are within the block."""

    linear: str
    norm: str  # that reads the sum; empty if the sum is the output of the block


@dataclass(frozen=True)
class Block:
    """The branches of a block in order.

    Attributes:
        branches: The last one completes the block.
        is_post_norm: Whether norms follow the sums, and forget their scale.
        is_read_as_it_is: Whether nothing stands between the block and the next one, such as a convolution.
    """

    branches: Sequence[Branch]
    is_post_norm: bool
    is_read_as_it_is: bool

    @property
    def last(self) -> Branch:
        """The branch that completes the block."""
        return self.branches[-1]


@torch.no_grad()
def find_blocks(model: PreTrainedModel, backbone: Backbone) -> list[Block]:
    """Find the branches of all blocks of a model in float32; refuse one that cannot be refitted."""
    if backbone.blocks is None:
        raise _refusal(model, f"it runs one block {backbone.num_layers} times, so its layers cannot differ. `align` it")
    network, inputs = trial(model)
    layered(network.config).use_cache = False  # a decoder's cache would grow with each trial of a block
    calls: list[Any] = []
    blocks = backbone.blocks_of(network)
    with ExitStack() as hooks:
        for block in blocks:
            noted = block.register_forward_hook(
                lambda _, args, kwargs, out: calls.append((args, kwargs, out)), with_kwargs=True
            )
            hooks.enter_context(noted)
        network(**inputs)
    found = []
    for number, (block, (args, kwargs, out)) in enumerate(zip(blocks, calls, strict=True)):
        branches, is_post_norm = _branches(block, partial(block, *args, **kwargs))
        if not branches:
            why = f"nothing in layer {number + 1} is a linear map whose output is added to the state as it is. `align` it"
            raise _refusal(model, why)
        after = number + 1 == len(blocks) or same(_state_in(calls[number + 1]), state_of(out))
        found.append(Block(branches, is_post_norm, after))
    return found


def state_of(output: Any) -> Tensor:
    """Return the state of what a block returns."""
    state: Tensor = output[0] if isinstance(output, tuple) else output
    return state


def _state_in(call: Any) -> Tensor:
    args, kwargs, _ = call
    state: Tensor = args[0] if args else kwargs["hidden_states"]
    return state


def _branches(block: nn.Module, run: Callable[[], Any]) -> tuple[list[Branch], bool]:
    """Find the branches of one block, and whether a norm completes it."""
    plain, made = _sums(block, run)
    shape = plain[_OUTPUT].shape
    linears = {path: module for path, module in block.named_modules() if isinstance(module, nn.Linear)}
    ends: dict[str, str] = {}
    draw = torch.Generator().manual_seed(0)
    for path, linear in linears.items():
        if path not in made or made[path].shape != shape:
            continue
        scale = float(made[path].std()) or 1.0
        more = (scale * torch.randn(shape, generator=draw)).to(made[path])
        with linear.register_forward_hook(lambda _, __, out, more=more: out + more):
            moved, _ = _sums(block, run)
        for norm, state in plain.items():
            # a norm within a branch reads the output of the map alone
            alone = same(state, made[path])
            if state.shape == shape and not alone and same(moved[norm] - state, more, _SHARE):
                ends[norm] = path  # of two that end in one sum, the later one
    branches = [Branch(ends[norm], norm) for norm in sorted(ends, key=[*plain].index)]
    if _OUTPUT in ends:
        return branches, False
    is_post_norm = bool(branches) and same(made[branches[-1].norm], plain[_OUTPUT])
    if is_post_norm and all(isinstance(block.get_submodule(branch.norm), nn.LayerNorm) for branch in branches):
        return branches, True
    return [], False


def _sums(block: nn.Module, run: Callable[[], Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run a block; return what its norms read and what it returns, in order, and what its norms and linear maps return."""
    read: dict[str, Tensor] = {}
    made: dict[str, Tensor] = {}

    def note(path: str, is_norm: bool) -> Callable[..., None]:
        def after(_: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            if is_norm:
                read[path] = args[0]
            made[path] = out

        return after

    with ExitStack() as hooks:
        for path, module in block.named_modules():
            if (is_norm := _is_norm(module)) or isinstance(module, nn.Linear):
                hooks.enter_context(module.register_forward_hook(note(path, is_norm)))
        out = state_of(run())
    return {**read, _OUTPUT: out}, made


def _is_norm(module: nn.Module) -> bool:
    weights: Mapping[str, Tensor] = dict(module.named_parameters())
    return bool(weights) and "weight" in weights and all(weight.ndim == 1 for weight in weights.values())


def _refusal(model: nn.Module, why: str) -> UsageError:
    return UsageError(f"{type(model).__name__} cannot be healed: {why} instead.")
