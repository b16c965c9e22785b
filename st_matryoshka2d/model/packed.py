"""Modules outside the blocks that hold a part for each layer, such as one table for the inputs of all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from st_matryoshka2d._hosts.torch import put_tensors
from st_matryoshka2d.model.copies import settings, skeleton
from st_matryoshka2d.model.cut_config import cut_config, packs_layers
from st_matryoshka2d.model.layers import Layers
from st_matryoshka2d.sizes import layered


@dataclass(frozen=True)
class Packed:
    """What grows with the layers in one module."""

    # by how much a number, such as the width of an output, grows with each layer
    numbers: Mapping[str, int]
    # of a tensor, the dimension along which layers lie one after another, and how many rows each has
    tensors: Mapping[str, tuple[int, int]]

    def select(self, module: nn.Module, layers: Sequence[int], total: int) -> None:
        """Leave some of all layers in a copied module; gradients reach the tensors of the original."""
        for name, growth in self.numbers.items():
            vars(module)[name] -= growth * (total - len(layers))
        whole = dict(module.named_parameters(recurse=False, remove_duplicate=False))
        put_tensors(module, {name: _rows(whole[name], *place, layers) for name, place in self.tensors.items()})


def find_packed(model: PreTrainedModel, blocks: str | None) -> dict[str, Packed]:
    """Find them by structure: what is larger in a model of this config than in one with a layer less."""
    total = layered(model.config).num_hidden_layers
    if blocks is None or total == 1 or not packs_layers(model.config):
        return {}
    try:
        whole, less = (skeleton(type(model), cut_config(model.config, Layers(total), depth)) for depth in (total, total - 1))
    except Exception:  # the check of a cut will say why there is none
        return {}
    smaller = dict(less.named_modules())
    outside = {path: module for path, module in whole.named_modules() if not f"{path}.".startswith(f"{blocks}.")}
    found = {path: _growth(module, smaller[path], total) for path, module in outside.items() if path in smaller}
    return {path: packed for path, packed in found.items() if packed.numbers or packed.tensors}


def _growth(module: nn.Module, less: nn.Module, total: int) -> Packed:
    """Compare a module with that of a model with a layer less."""
    numbers: dict[str, int] = {}
    tensors: dict[str, tuple[int, int]] = {}
    before = settings(less)
    for name, value in settings(module).items():
        smaller = before.get(name)
        if type(value) is int and type(smaller) is int and value != smaller:
            numbers[name] = value - smaller
    shapes = {name: weight.shape for name, weight in less.named_parameters(recurse=False)}
    for name, weight in module.named_parameters(recurse=False):
        pairs = enumerate(zip(weight.shape, shapes.get(name, ()), strict=False))
        grown = [(place, rows - fewer) for place, (rows, fewer) in pairs if rows != fewer]
        if len(grown) == 1 and weight.shape[grown[0][0]] == total * grown[0][1]:
            tensors[name] = grown[0]
    return Packed(numbers, tensors)


def _rows(weight: Tensor, dimension: int, height: int, layers: Sequence[int]) -> Tensor:
    """Select the rows of some layers along a dimension; those of the first layers share memory with the weight."""
    with torch.enable_grad():  # without them, a cut could not be trained later
        runs = [weight.narrow(dimension, start * height, length * height) for start, length in runs_of(layers)]
        return runs[0] if len(runs) == 1 else torch.cat(runs, dimension)


def runs_of(layers: Sequence[int]) -> list[tuple[int, int]]:
    """Return start and length of each run of layers without a gap."""
    runs: list[tuple[int, int]] = []
    for layer in layers:
        start, length = runs.pop() if runs and sum(runs[-1]) == layer else (layer, 0)
        runs.append((start, length + 1))
    return runs
