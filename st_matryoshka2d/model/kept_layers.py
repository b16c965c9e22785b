"""Which layers a depth keeps: those of the config, the first, or the first and the last. The heart of cutting; no torch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.model.declaration import Declaration, declared_layers, is_ours
from st_matryoshka2d.sizes import positive_int

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LayersByDepth: TypeAlias = Mapping[int, Sequence[int]]
Layers: TypeAlias = "str | LayersByDepth"

FIRST, ENDS = "first", "ends"

# Lists that may be as long as the model is deep by accident; every other list of that length has
# one entry per layer.
_NOT_PER_LAYER = {"architectures", "bos_token_id", "eos_token_id", "id2label", "pad_token_id"}

# Settings that differ from layer to layer, by the layer's number. A config of transformers writes
# and takes them by this name, and keeps them by another.
_OVERRIDES = "per_layer_config"


def ends(num_layers: int, total: int) -> list[int]:
    """Return the layers of a depth, counted from 1: half from the start and half from the end, the odd one at the end."""
    # the first block of some families has parts that the others lack, so it always stays
    last = (num_layers + 1) // 2 if num_layers > 1 else 0
    return [*range(1, num_layers - last + 1), *range(total - last + 1, total + 1)]


def keeps_ends(config: Any) -> bool:
    """Whether depths keep `ENDS` as nothing says otherwise: nobody chose, aligned or trained layers for them."""
    if declared_layers(config) is not None:
        return False
    declared = Declaration.of(config)
    shallower = any(0 < size.num_layers < config.num_hidden_layers for size in declared.sizes)
    return not shallower and declared.readouts in (None, [0])  # a token table is no layer


def keep_first(config: Any) -> None:
    """Declare the first layers, which one forward pass trains at all depths, unless others are declared."""
    if declared_layers(config) is None:
        _declare(config, {})


def chosen_layers(layers: Layers, num_layers: int) -> dict[int, list[int]]:
    """Return the layers of every depth below the full one, counted from 1; empty for the first layers."""
    if isinstance(layers, str) and layers in (FIRST, ENDS):
        depths = range(1, num_layers) if layers == ENDS else ()
        return {depth: ends(depth, num_layers) for depth in depths}
    if not isinstance(layers, Mapping):
        kind = UsageError if isinstance(layers, str) else UsageTypeError
        raise kind(f"layers must be {FIRST!r}, {ENDS!r} or a dict such as {{3: [1, 5, 6]}}, got {layers!r}.")
    first = {depth: list(range(1, depth + 1)) for depth in range(1, num_layers)}
    return first | {depth: _checked(depth, numbers, num_layers) for depth, numbers in layers.items()}


def choose_layers(config: Any, layers: Layers, depths: Iterable[int]) -> None:
    """Declare the layers that depths keep; refuse other layers than those that a readout was fitted to."""
    chosen = chosen_layers(layers, config.num_hidden_layers)
    for depth in set(Declaration.of(config).readouts or ()).intersection(depths) - {0}:
        before = [layer + 1 for layer in kept_layers(config, depth)]
        if (other := chosen.get(depth, list(range(1, depth + 1)))) != before:
            raise UsageError(
                f"layers: at {depth} layers this aligned model keeps {before}, which its readout was fitted to, "
                f"not {other}. Leave `layers` out, or align the model with them."
            )
    _declare(config, chosen)


def depth_of_choice(layers: object, num_layers: int | None) -> int:
    """Return the depth that one choice of layers is for; refuse a list of another length, and a choice for no depth."""
    if isinstance(layers, str) and layers in (FIRST, ENDS):
        if num_layers is None:
            raise UsageError(f"layers={layers!r} needs a number of layers: pass num_layers too.")
        return num_layers
    if isinstance(layers, (str, Mapping)) or not isinstance(layers, Sequence):
        raise UsageError(f"layers must be {FIRST!r}, {ENDS!r} or a list such as [1, 5, 6], got {layers!r}.")
    if num_layers not in (None, len(layers)):
        raise UsageError(f"layers lists {len(layers)} layers, {list(layers)}, but num_layers is {num_layers}.")
    return len(layers)


def of_depth(layers: str | Sequence[int], depth: int) -> Layers:
    """Return a choice of layers for one depth as a choice for several."""
    return layers if isinstance(layers, str) else {depth: layers}


def _checked(depth: object, layers: Iterable[object], num_layers: int) -> list[int]:
    if positive_int(depth, "layers: the number of layers") >= num_layers:
        raise UsageError(f"layers has an entry for {depth} layers, but only 1 to {num_layers - 1} leave any out.")
    given = [positive_int(layer, f"layers of {depth}: a layer") for layer in layers]
    if max(given, default=0) > num_layers:
        raise UsageError(f"layers of {depth}: there is no layer {max(given)}, as the model has {num_layers}.")
    if len(set(given)) != depth or given != sorted(given):
        raise UsageError(f"layers: {depth} different layers in ascending order are needed, got {given}.")
    return given


def skips_layers(config: Any) -> bool:
    """Whether some depth keeps other layers than the first."""
    return bool(declared_layers(config)) or keeps_ends(config)


def listed_layers(config: Any) -> Mapping[str, Any]:
    """Return the layers of all depths if some skips any, as a config lists them."""
    if not keeps_ends(config):
        return declared_layers(config) or {}
    return {str(depth): kept for depth, kept in chosen_layers(ENDS, getattr(config, "num_hidden_layers", 0)).items()}


def kept_layers(config: Any, num_layers: int) -> list[int]:
    """Return the layers that a depth keeps, counted from 0; refuse a config that someone else may have broken."""
    listed, total = declared_layers(config), config.num_hidden_layers
    if num_layers == total or not (listed or keeps_ends(config)):
        return list(range(num_layers))
    try:
        layers = _checked(num_layers, listed[str(num_layers)], total) if listed else ends(num_layers, total)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"`matryoshka_layers` in the model's config does not say which {num_layers} layers to keep: "
            f"{error} Align the model again."
        ) from error
    return [layer - 1 for layer in layers]


def smallest_depth_with(config: Any, depths: Sequence[int]) -> int:
    """Return the smallest depth whose layers include those of all given depths: the deepest of them, or the full one."""
    total: int = config.num_hidden_layers
    deepest = set(kept_layers(config, max(depths)))
    return max(depths) if all(set(kept_layers(config, depth)) <= deepest for depth in depths) else total


def passes(config: Any, num_layers: int) -> float:
    """Return how many passes through the whole model it takes to run it at every depth."""
    again = 0
    for depth in range(1, num_layers):
        layers = kept_layers(config, depth)
        again += depth - next((place for place, layer in enumerate(layers) if layer != place), depth)
    return 1 + again / num_layers


def per_layer(config: PreTrainedConfig) -> dict[str, list[Any] | dict[int, Any]]:
    """Return the settings with an entry for each layer (`layer_types`, ...), or for some layers, by their numbers from 0."""
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
    return bool(getattr(config, "hidden_size_per_layer_input", None))


def cut_config(config: PreTrainedConfig, num_layers: int) -> PreTrainedConfig:
    """Copy a config with `num_layers` layers, and select from all that it has per layer to match."""
    cut = copy.copy(config)
    cut.num_hidden_layers = num_layers
    if num_layers == config.num_hidden_layers:  # a broken config may have a billion layers: no list of them
        return cut
    layers = kept_layers(config, num_layers)
    for name, entries in per_layer(config).items():
        if isinstance(entries, list):
            setattr(cut, name, [entries[layer] for layer in layers])
        else:
            setattr(cut, name, {place: entries[layer] for place, layer in enumerate(layers) if layer in entries})
    if shared := getattr(config, "num_kv_shared_layers", None):  # the last ones, which take keys and values of others
        cut.num_kv_shared_layers = sum(layer >= config.num_hidden_layers - shared for layer in layers)
    _declare(cut, _nested(config, layers))
    return cut


def changed_by_cut(config: PreTrainedConfig, cut: PreTrainedConfig) -> dict[str, Any]:
    """Return what the config of a cut says otherwise than that of the whole, as both are written."""
    before = config.to_dict()
    return {name: value for name, value in cut.to_dict().items() if name not in before or before[name] != value}


def _nested(config: Any, chosen: Sequence[int]) -> dict[int, list[int]]:
    """Return the layers of the depths below a cut, by their places in it; none if they are the first."""
    if not skips_layers(config):
        return {}
    of_below = {depth: kept_layers(config, depth) for depth in range(1, len(chosen))}
    return {
        depth: [1 + chosen.index(layer) for layer in layers]
        for depth, layers in of_below.items()
        if set(layers) <= set(chosen)
    }


def _declare(config: Any, chosen: LayersByDepth) -> None:
    layers = {str(depth): list(of_depth) for depth, of_depth in chosen.items()}
    replace(Declaration.of(config), layers=layers).write(config)
