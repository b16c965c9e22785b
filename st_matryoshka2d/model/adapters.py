"""Find the layers that PEFT adapters, such as LoRA, put into a model.

They lie inside the blocks, so a model with adapters can be scored and trained at every depth as it
is. To be saved, a cut has them merged (`truncated_transformer.py`): transformers saves the adapter alone, which
always loads into the whole base model.

An adapter is saved without the config of its model, so what the model declares is written into the `auto_mapping` of the
adapter's own config too: PEFT saves and reads that dict, and uses it only to find the class of a base model.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.declaration import own_entries

_TAKEN = "declared_by_adapter"  # the `auto_mapping` that a network has in its config


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


def declare_in_adapters(network: Any) -> None:
    """Write what a model declares into the configs of its adapters in use."""
    # as PEFT writes it
    of_class = {"base_model_class": type(network).__name__, "parent_library": type(network).__module__}
    told = of_class | own_entries(network.config)
    for config in _configs_in_use(network):
        config.auto_mapping = vars(network)[_TAKEN] = told


def declare_from_adapters(network: Any) -> None:
    """Write what an adapter in use declares into the config of a model, once: it was read from the base model."""
    told = next((config.auto_mapping for config in _configs_in_use(network) if own_entries(config.auto_mapping or {})), None)
    # a view of fewer layers, or with other layers, keeps its own
    if told is None or told is vars(network).get(_TAKEN):
        return
    vars(network)[_TAKEN] = told
    entries = vars(network.config)
    for key in own_entries(network.config).keys() - told.keys():
        del entries[key]
    entries.update(own_entries(told))


def _configs_in_use(network: Any) -> list[Any]:
    """List the configs of the adapters that a model uses; none if they are disabled."""
    if not (configs := getattr(network, "peft_config", None)):
        return []
    layer = next(iter(adapter_layers(network).values()), None)
    names = [] if layer is None or layer.disable_adapters else layer.active_adapters
    return [configs[name] for name in names if name in configs]
