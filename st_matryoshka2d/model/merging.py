"""Merge the PEFT adapters of a model into its weights."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from st_matryoshka2d._hosts.transformers import forget_adapters
from st_matryoshka2d.model.adapters import adapter_layers
from st_matryoshka2d.model.backbone import find_backbone, refusal, shallow_view


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model with its active adapters in its weights; nothing of PEFT is left, and no weight is shared."""
    backbone = find_backbone(model)
    # a view has none of the model's hooks
    plain = copy.deepcopy(shallow_view(model, backbone, backbone.num_layers))
    replaced: dict[int, nn.Module] = {}  # a layer that a model holds twice stays one
    for path, layer in adapter_layers(plain).items():
        try:
            replaced[id(layer)] = replaced.get(id(layer)) or _as_plain(layer)
        except Exception as error:
            why = f"Its adapter layer {path} cannot be merged into the weights. {type(error).__name__}: {error}"
            raise refusal(model, why) from error
        plain.set_submodule(path, replaced[id(layer)])
    forget_adapters(plain)
    plain.disable_input_require_grads()  # a hook for gradient checkpointing of frozen weights
    for weight in plain.parameters():
        weight.requires_grad_(weight.is_floating_point())  # PEFT had frozen them
    return plain


def _as_plain(layer: Any) -> Any:
    """Return a module without adapters that computes what an adapter layer does; the weights of the layer change."""
    is_used = not layer.disable_adapters
    # such as a module that is trained whole
    if hasattr(layer, "unload_and_optionally_merge_module"):
        if not is_used and hasattr(layer, "original_module"):
            return layer.original_module
        return layer.unload_and_optionally_merge_module(merge=is_used, safe_merge=False, adapter_names=None)
    if is_used:
        layer.merge()
    return layer.get_base_layer()
