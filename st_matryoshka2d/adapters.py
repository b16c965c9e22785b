"""PEFT adapters, such as LoRA: find their layers in a model, and merge them into its weights.

Adapter layers lie inside the blocks, so a model with adapters can be scored and trained at every depth as it is. Only saving
needs a merge: transformers saves such a model as its adapter alone, which always loads into the whole base model.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from st_matryoshka2d.backbone import find_backbone, refusal, shallow_view


def adapter_layers(model: nn.Module) -> dict[str, Any]:
    """List the adapter layers of a model by path; one inside another is left out."""
    if "peft" not in sys.modules:
        return {}  # an adapter layer is an object of peft
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    found: dict[str, Any] = {}
    outer = "no path"
    for path, module in model.named_modules(remove_duplicate=False):  # a module comes before those inside it
        if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)) and not path.startswith(f"{outer}."):
            found[outer := path] = module
    return found


def adapter_settings(model: nn.Module) -> dict[str, Any]:
    """Return what decides, beside the weights, what the adapter layers of a model compute: which adapters are in use."""
    names = "active_adapters", "disable_adapters", "merged_adapters", "scaling"
    return {path: {name: getattr(layer, name, None) for name in names} for path, layer in adapter_layers(model).items()}


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model with its active adapters in its weights; nothing of PEFT is left, and no weight is shared."""
    backbone = find_backbone(model)
    plain = copy.deepcopy(shallow_view(model, backbone, backbone.num_layers))  # a view has none of the model's hooks
    replaced: dict[int, nn.Module] = {}  # a layer that a model holds twice stays one
    for path, layer in adapter_layers(plain).items():
        try:
            replaced[id(layer)] = replaced.get(id(layer)) or _as_plain(layer)
        except Exception as error:
            why = f"Its adapter layer {path} cannot be merged into the weights. {type(error).__name__}: {error}"
            raise refusal(model, why) from error
        plain.set_submodule(path, replaced[id(layer)])
    for name in ("peft_config", "_hf_peft_config_loaded"):
        vars(plain).pop(name, None)  # with these, transformers would save the adapter alone
    plain.disable_input_require_grads()  # a hook for gradient checkpointing of frozen weights
    for weight in plain.parameters():
        weight.requires_grad_(weight.is_floating_point())  # PEFT had frozen them
    return plain


def _as_plain(layer: Any) -> Any:
    """Return a module without adapters that computes what an adapter layer does; the weights of the layer change."""
    is_used = not layer.disable_adapters
    if hasattr(layer, "unload_and_optionally_merge_module"):  # such as a module that is trained whole
        if not is_used and hasattr(layer, "original_module"):
            return layer.original_module
        return layer.unload_and_optionally_merge_module(merge=is_used, safe_merge=False, adapter_names=None)
    if is_used:
        layer.merge()
    elif layer.merged:
        layer.unmerge()
    return layer.get_base_layer()
