"""Tell whether two models are built alike, so that what is found of one need not be found again of the other."""

from __future__ import annotations

import hashlib

import torch
from torch import nn
from transformers import PreTrainedModel

from st_matryoshka2d._hosts.torch import hooks, is_saved

PLAIN = (bool, int, float, str, type(None))


def settings(module: nn.Module) -> dict[str, object]:
    """Return the plain attributes of a module, such as a sliding window, but for its mode."""
    found = {name: value for name, value in vars(module).items() if isinstance(value, PLAIN)}
    return {name: value for name, value in found.items() if not name.startswith("_") and name != "training"}


def architecture(model: PreTrainedModel) -> str:
    """Digest all that decides how a model computes, but for its weights: config, modules, their settings and buffers."""
    digest = hashlib.sha256(model.config.to_json_string(use_diff=False).encode())
    for path, module in model.named_modules(remove_duplicate=False):
        functions = {name: getattr(value, "__qualname__", "") for name, value in vars(module).items() if callable(value)}
        weights = module.named_parameters(recurse=False, remove_duplicate=False)
        tensors = [(name, weight.shape, weight.dtype) for name, weight in weights]
        described = path, id(type(module)), type(module), settings(module), functions, len(hooks(module)), tensors
        digest.update(repr(described).encode())
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if buffer.is_meta or is_saved(module, name):
                continue  # the others are in the state dict, so that every way to a cut has them
            digest.update(buffer.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
