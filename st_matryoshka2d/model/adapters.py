"""Find the layers that PEFT adapters, such as LoRA, put into a model.

They lie inside the blocks, so a model with adapters can be scored and trained at every depth as it
is. To be saved, a cut has them merged (`truncated_transformer.py`): transformers saves the adapter alone, which
always loads into the whole base model.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from st_matryoshka2d.errors import UsageError


def adapter_layers(model: nn.Module) -> dict[str, Any]:
    """List the adapter layers of a model by path; one inside another is left out."""
    if "peft" not in sys.modules:
        return {}  # an adapter layer is an object of peft
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    layers: dict[str, Any] = {}
    outer = "no path"
    # a module comes before those inside it
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)) and not path.startswith(f"{outer}."):
            layers[outer := path] = module
    return layers


def adapter_settings(model: nn.Module) -> dict[str, Any]:
    """Return what decides, beside the weights, what the adapter layers of a model compute: which adapters are in use."""
    names = "active_adapters", "disable_adapters", "merged_adapters", "scaling"
    return {path: {name: getattr(layer, name, None) for name in names} for path, layer in adapter_layers(model).items()}


def require_steady(model: nn.Module) -> None:
    """Refuse adapters that the next forward pass would take out of the weights, and so out of all that share them."""
    layers = adapter_layers(model).values()
    if any(layer.disable_adapters and layer.merged_adapters for layer in layers):
        raise UsageError(
            f"{type(model).__name__} has adapters that are merged into its weights and disabled. Take them out, by calling "
            "`unmerge()` of each adapter layer or by running the model once; or enable them."
        )
