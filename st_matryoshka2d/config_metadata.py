"""What a model's config tells of how it was made: the sizes that were trained, by which loss, and what it is a cut of.

These are plain entries of `config.json`: every save and load keeps them, with this package or without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from st_matryoshka2d.sizes import Size, sizes_product

ALIGN = "align"  # what stands for an alignment where a loss is named

_LISTED = 64  # more sizes than these are written as layers and dims, where most are all pairs of some


def declare_training(config: Any, sizes: Iterable[Size], loss: str) -> None:
    """Add sizes to those in a model's config, and name the loss that trained last."""
    config.matryoshka_sizes = _written({*trained_sizes(config), *sizes})
    config.matryoshka_loss = loss


def trained_sizes(config: Any) -> list[Size]:
    """The sizes that a model's config says it was trained at, ascending."""
    told = config.get("matryoshka_sizes") if isinstance(config, dict) else getattr(config, "matryoshka_sizes", None)
    try:
        if isinstance(told, dict):
            others = [Size.parse(text) for text in told.get("others", [])]
            return sorted([*sizes_product(told["num_layers"], told["dims"]), *others])
        return sorted(Size.parse(text) for text in told or [])
    except (KeyError, TypeError, ValueError):
        return []  # somebody else's entry of that name


def declare_dims(config: Any, dims: Iterable[int]) -> None:
    """Write a model's dims into its config, under the two keys that vLLM and other servers read."""
    config.is_matryoshka = True
    config.matryoshka_dimensions = sorted(set(dims))


def declared_dims(config: Any) -> list[int]:
    """The dims that a model's config declares."""
    return list(getattr(config, "matryoshka_dimensions", None) or [])


def declare_cut(config: Any, size: Size, original: Any, full: Size, name: str | None) -> None:
    """Write into a cut's config what it was cut from, and which dims, trained sizes and readouts it still has."""
    declare_dims(config, [*(dim for dim in declared_dims(original) if dim < size.dim), size.dim])
    if size.num_layers < full.num_layers and hasattr(config, "matryoshka_readouts"):
        if size.num_layers in (getattr(original, "matryoshka_readouts", None) or []):
            config.matryoshka_readouts = []  # that of its own depth alone, in its `Dense`
        else:
            del config.matryoshka_readouts
    if trained := trained_sizes(original):
        within = [each for each in trained if each.num_layers <= size.num_layers and each.dim <= size.dim]
        config.matryoshka_sizes = _written(within)
    if size != full:
        # A cut of a cut is one of the model that was cut first.
        origin = getattr(original, "matryoshka_cut", None) or {"of": str(full), "model": name}
        config.matryoshka_cut = {**origin, "size": str(size)}


def nearest(size: Size, trained: Iterable[Size]) -> list[Size]:
    """The trained sizes nearest to a size: one smaller and one larger, where they exist."""
    # Layers make most of the cost, so the nearest in layers comes first, and of those the nearest in dims.
    others = sorted(trained)
    others.sort(key=lambda other: (abs(other.num_layers - size.num_layers), abs(other.dim - size.dim)))
    sides = [[each for each in others if each < size], [each for each in others if each > size]]
    return [side[0] for side in sides if side]


def warn_if_untrained(original: Any, size: Size, full: Size) -> None:
    """Warn the user, two calls up, of a size that is not among those the model was trained at."""
    trained = trained_sizes(original)
    if not trained or size == full or size in trained:
        return
    sides = [f"{each} ({'smaller' if each < size else 'larger'})" for each in nearest(size, trained)]
    how = "aligned for" if getattr(original, "matryoshka_loss", None) == ALIGN else "trained at"
    warnings.warn(
        f"This model was not {how} {size}, and may be much worse there than where it was. The nearest sizes that it was "
        f"{how}: {', '.join(sides)}. `evaluate` says what {size} scores; to make it better, name it in the `sizes` of the "
        "loss or of `align`.",
        UserWarning,
        stacklevel=3,
    )


def layers_by_dims(sizes: Iterable[Size]) -> list[tuple[list[int], list[int]]]:
    """Runs of layers with the same dims, and those dims."""
    dims = {layer: [size.dim for size in group] for layer, group in groupby(sizes, key=lambda size: size.num_layers)}
    return [(list(layers), of_each) for of_each, layers in groupby(dims, key=dims.__getitem__)]


def _written(sizes: Iterable[Size]) -> list[str] | dict[str, list[int] | list[str]]:
    each = sorted(sizes)
    layers = sorted({size.num_layers for size in each})
    dims = [dim for dim in sorted({size.dim for size in each}) if {Size(layer, dim) for layer in layers} <= set(each)]
    if len(each) <= _LISTED or not dims:
        return [str(size) for size in each]
    others = [str(size) for size in each if size.dim not in dims]
    return {"num_layers": layers, "dims": dims} | ({"others": others} if others else {})
