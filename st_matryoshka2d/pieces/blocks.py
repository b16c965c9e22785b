"""Which tensors of a checkpoint belong to the blocks above a depth."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

__all__ = ["blank_model", "block_lists", "names_above"]


def blank_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A model without numbers, which takes no memory however large the config says it is.

    Args:
        config: The model's own config.
    """
    with torch.device("meta"):
        model: PreTrainedModel = AutoModel.from_config(config)
    return model


def block_lists(model: PreTrainedModel) -> list[str]:
    """Dotted paths of the lists in a model that are as long as it is deep.

    Args:
        model: With or without numbers.
    """
    depth = model.config.num_hidden_layers
    return [path for path, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == depth]


def names_above(names: Iterable[str], lists: Collection[str], depth: int, num_layers: int) -> set[str] | None:
    """Names of the tensors in the blocks after the first `num_layers`.

    A checkpoint may put a name before every path, `bert.` or `model.`.

    Args:
        names: Names of all tensors in the checkpoint.
        lists: Where the model may keep its blocks, see `block_lists`.
        depth: How many blocks it has.
        num_layers: How many are to be kept.

    Returns:
        None where the names do not show just one list of `depth` blocks, so that nothing can be left out.
    """
    anywhere = "|".join(map(re.escape, lists))
    pattern = re.compile(rf"((?:.+?\.)??(?:{anywhere}))\.(0|[1-9][0-9]{{0,5}})\.")
    found: dict[str, dict[int, set[str]]] = {}
    for name in names:
        if match := pattern.match(name):
            found.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(name)
    whole = [blocks for blocks in found.values() if set(blocks) == set(range(depth))]
    if not lists or len(whole) != 1:
        return None
    return {name for index, names_of_block in whole[0].items() if index >= num_layers for name in names_of_block}
