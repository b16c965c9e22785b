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
_NOT_PER_LAYER = {"architectures", "bos_token_id", "eos_token_id", "pad_token_id"}


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


def cut_config(config: PreTrainedConfig, num_layers: int) -> PreTrainedConfig:
    """Copy a config with `num_layers` layers, and select from every per-layer list (`layer_types`, ...) to match."""
    cut = copy.copy(config)
    # a broken config may have a billion layers: no list of them
    chosen = kept_layers(config, num_layers) if num_layers < config.num_hidden_layers else None
    for name, value in vars(config).items():
        if (
            isinstance(value, list)
            and len(value) == config.num_hidden_layers
            and not (name in _NOT_PER_LAYER or is_ours(name))
        ):
            setattr(cut, name, value[:num_layers] if chosen is None else [value[layer] for layer in chosen])
    if chosen is not None:
        _declare(cut, _nested(config, chosen))
    cut.num_hidden_layers = num_layers
    return cut


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
