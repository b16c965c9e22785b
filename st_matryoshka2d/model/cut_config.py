"""The config of a cut: fewer layers, and what the whole has for each layer, selected to match. No torch."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from st_matryoshka2d.model.declaration import Declaration, is_ours
from st_matryoshka2d.model.layers import Choice, Layers, rechosen
from st_matryoshka2d.sizes import layered

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Lists that may be as long as the model is deep by accident; every other list of that length has
# one entry per layer.
_NOT_PER_LAYER = {"architectures", "bos_token_id", "eos_token_id", "id2label", "pad_token_id"}

# Settings that differ from layer to layer, by the layer's number. A config of transformers writes
# and takes them by this name, and keeps them by another.
_OVERRIDES = "per_layer_config"


@dataclass(frozen=True)
class Cut:
    """What is kept of a model in depth, decided as soon as its config is read."""

    whole: PreTrainedConfig
    declaration: Declaration  # of the whole
    layers: Layers  # of its depths
    num_layers: int

    @classmethod
    def of(cls, whole: PreTrainedConfig, num_layers: int, choice: Choice | None = None) -> Cut:
        """Decide for a depth, with the layers that the config declares or a user chose."""
        declaration = Declaration.of(whole)
        layers = Layers.of(whole, declaration)
        if choice is not None:
            layers, declaration = rechosen(layers, declaration, choice, [num_layers])
        return cls(whole, declaration, layers, num_layers)

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The config of the cut."""
        return cut_config(self.whole, self.layers, self.num_layers)

    @property
    def changed(self) -> dict[str, Any]:
        """What it says otherwise than that of the whole, as both are written."""
        before = self.whole.to_dict()
        return {name: value for name, value in self.config.to_dict().items() if name not in before or before[name] != value}

    @property
    def kept(self) -> list[int]:
        """The layers that stay, counted from 0."""
        return self.layers.kept(self.num_layers)

    @property
    def is_whole(self) -> bool:
        """Whether all stay."""
        return self.num_layers == self.layers.total


def cut_config(config: PreTrainedConfig, layers: Layers, num_layers: int) -> PreTrainedConfig:
    """Copy a config with `num_layers` layers, and select from all that it has per layer to match."""
    cut = copy.copy(config)
    if (text := layered(config)) is not config:
        cut.text_config = cut_config(text, layers, num_layers)
        return _renumbered(cut, config, layers, num_layers)
    cut.num_hidden_layers = num_layers
    # a broken config may have a billion layers, so no list of them; a decoder may be deeper than its encoder
    if num_layers >= config.num_hidden_layers:
        return cut
    kept = layers.kept(num_layers)
    for name, entries in per_layer(config).items():
        if isinstance(entries, list):
            setattr(cut, name, [entries[layer] for layer in kept])
        else:
            setattr(cut, name, {place: entries[layer] for place, layer in enumerate(kept) if layer in entries})
    if shared := getattr(config, "num_kv_shared_layers", None):  # the last ones, which take keys and values of others
        cut.num_kv_shared_layers = sum(layer >= config.num_hidden_layers - shared for layer in kept)
    return _renumbered(cut, config, layers, num_layers)


def _renumbered(cut: PreTrainedConfig, config: PreTrainedConfig, layers: Layers, num_layers: int) -> PreTrainedConfig:
    """Let the config of a cut list layers by their places in it."""
    if num_layers < layers.total and (declared := Declaration.of(config)).layers:
        replace(declared, layers=layers.within(num_layers).written()).write(cut)
    return cut


def per_layer(config: PreTrainedConfig) -> dict[str, list[Any] | dict[int, Any]]:
    """Return the settings with an entry for each layer (`layer_types`, ...), or for some layers, by their numbers from 0."""
    config = layered(config)
    total = config.num_hidden_layers
    found: dict[str, list[Any] | dict[int, Any]] = {}
    for name, value in vars(config).items():
        if name in _NOT_PER_LAYER or is_ours(name):
            continue
        if isinstance(value, list) and len(value) == total:
            found[name] = value
        elif isinstance(value, dict) and value and all(str(key).isdecimal() and int(key) < total for key in value):
            found[name] = {int(key): entry for key, entry in value.items()}
    if getattr(config, "is_heterogeneous", False):
        found[_OVERRIDES] = {int(layer): entry for layer, entry in config.to_dict()[_OVERRIDES].items()}
    return found


def packs_layers(config: Any) -> bool:
    """Whether tensors outside the blocks hold a part for each layer, as in Gemma 3n and later: inputs of every layer."""
    return bool(getattr(layered(config), "hidden_size_per_layer_input", None))
