"""Config entries of this package: the trained sizes and dims, the loss, and what a cut was cut from.

They are plain entries of `config.json`, which every save and load keeps, with this package or
without it. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from st_matryoshka2d.errors import DataWarning, warn
from st_matryoshka2d.model.declared_agreement import agreement_within, declare_agreement
from st_matryoshka2d.model.kept_layers import declare_layers, kept_layers, skips_layers, written_depth
from st_matryoshka2d.sizes import Size, sizes_product

ALIGN = "align"  # the value of `matryoshka_loss` for an alignment

# An untrained model keeps 92 % of its search scores with a third of its dims, 79 % with a sixth:
# docs/other_ways.md
_FEWEST = 5

_LISTED = 64  # longer lists of sizes are written as layers by dims, plus the others


def declare_training(config: Any, sizes: Iterable[Size], loss: str) -> None:
    """Add sizes to the trained ones in a model's config, and set the loss that trained last."""
    config.matryoshka_sizes = _written({*trained_sizes(config), *sizes})
    config.matryoshka_loss = loss
    declare_agreement(config, {})  # it was measured with other weights


def forget_trained_depths(config: Any) -> None:
    """Leave out the trained sizes of fewer layers, because they were trained with other layers."""
    if trained := trained_sizes(config):
        config.matryoshka_sizes = _written(size for size in trained if size.num_layers == config.num_hidden_layers)


def trained_sizes(config: Any) -> list[Size]:
    """Return the trained sizes in a model's config, ascending."""
    entries = config if isinstance(config, dict) else vars(config) if config else {}
    sizes = _parsed(entries.get("matryoshka_sizes"))
    if entries.get("matryoshka_readouts") != [] or not str(entries.get("matryoshka_loss")).endswith(ALIGN):
        return sizes
    # a cut of an aligned model, with the readout of its own depth alone
    return [size for size in sizes if size.num_layers == written_depth(entries)]


def _parsed(entry: Any) -> list[Size]:
    try:
        if isinstance(entry, dict):
            others = [Size.parse(text) for text in entry.get("others", [])]
            return sorted([*sizes_product(entry["num_layers"], entry["dims"]), *others])
        return sorted(Size.parse(text) for text in entry or [])
    except (KeyError, TypeError, ValueError):
        return []  # an entry of another program


def declare_dims(config: Any, dims: Iterable[int]) -> None:
    """Write a model's dims into its config, under the two keys that vLLM and other servers read."""
    config.is_matryoshka = True
    config.matryoshka_dimensions = sorted(set(dims))


def declared_dims(config: Any) -> list[int]:
    """Return the dims that a model's config declares."""
    return list(getattr(config, "matryoshka_dimensions", None) or [])


def declare_cut(config: Any, size: Size, original: Any, full: Size, name: str | None) -> None:
    """Write into a cut's config what it was cut from, and its dims, trained sizes, readouts and agreement."""
    declare_dims(config, [*(dim for dim in declared_dims(original) if dim < size.dim), size.dim])
    declare_agreement(config, agreement_within(original, size, full))
    if size.num_layers < full.num_layers and hasattr(config, "matryoshka_readouts"):
        if size.num_layers in (getattr(original, "matryoshka_readouts", None) or []):
            config.matryoshka_readouts = []  # only that of its own depth, in its `Dense`
        else:
            del config.matryoshka_readouts
    if size.num_layers < full.num_layers and skips_layers(original):
        declare_layers(config, {})
    if trained := trained_sizes(original):
        within = [each for each in trained if each.num_layers <= size.num_layers and each.dim <= size.dim]
        config.matryoshka_sizes = _written(within)
        config.matryoshka_sizes = _written(trained_sizes(config))  # those with a readout
    if size != full:
        # A cut of a cut names the model that was cut first, and its layers unless they are the
        # first ones.
        origin = getattr(original, "matryoshka_cut", None) or {"of": str(full), "model": name}
        config.matryoshka_cut = {**origin, "size": str(size)}
        before = origin.get("layers")
        if before or (skips_layers(original) and size.num_layers < full.num_layers):
            before = before or range(1, full.num_layers + 1)
            config.matryoshka_cut["layers"] = [before[layer] for layer in kept_layers(original, size.num_layers)]


def nearest(size: Size, trained: Iterable[Size]) -> list[Size]:
    """Return the trained sizes nearest to a size: one smaller and one larger, if they exist."""
    # Layers make most of the cost, so the nearest in layers comes first, and of those the nearest
    # in dims.
    others = sorted(trained)
    others.sort(key=lambda other: (abs(other.num_layers - size.num_layers), abs(other.dim - size.dim)))
    return [*[each for each in others if each < size][:1], *[each for each in others if each > size][:1]]


def warn_if_untrained(original: Any, size: Size, full: Size) -> None:
    """Warn, two calls up, if the model was not trained at this size, or nothing says that it was trained for any."""
    trained = trained_sizes(original)
    # a token table was fitted, or there is none
    if size == full or size in trained or not size.num_layers:
        return
    told = _untrained_size(original, size, trained) if trained else _untrained_model(original, size, full)
    if told:
        warn(told, DataWarning)


def _untrained_size(original: Any, size: Size, trained: Sequence[Size]) -> str:
    sides = [f"{each} ({'smaller' if each < size else 'larger'})" for each in nearest(size, trained)]
    how = "aligned for" if getattr(original, "matryoshka_loss", None) == ALIGN else "trained at"
    return (
        f"This model was not {how} {size}, and may be much worse there. The nearest sizes that it was {how}: "
        f"{', '.join(sides)}. Score {size}, with `evaluate` or the command `grid`. To improve it, add it to the `sizes` of "
        "the loss or of `align`."
    )


def _untrained_model(original: Any, size: Size, full: Size) -> str | None:
    """Tell of any model with fewer layers, and of one with few dims unless it declares that it was trained for them."""
    dims = declared_dims(original)
    narrow = size.dim < (min(dims) if dims else full.dim) and size.dim * _FEWEST < full.dim
    if size.num_layers < full.num_layers:
        lost = "fewer layers"
    elif narrow and (dims or not getattr(original, "is_matryoshka", False)):
        lost = "less than a fifth of its dims"
    else:
        return None
    free = 'layers="ends" keeps the last layers too, which usually scores far better and is free. '
    # Without the size, so that a loop over sizes warns once.
    return (
        f"Nothing says that this model was aligned or trained for {lost}, and it may be far worse with them. "
        f"{free if lost == 'fewer layers' and not skips_layers(original) else ''}Score the size, with `evaluate` or the "
        "command `grid`. To improve it, `align` the model, or train it with a loss of this package."
    )


def layers_by_dims(sizes: Iterable[Size]) -> list[tuple[list[int], list[int]]]:
    """Group runs of layers with the same dims."""
    dims = {layer: [size.dim for size in group] for layer, group in groupby(sizes, key=lambda size: size.num_layers)}
    return [(list(layers), shared) for shared, layers in groupby(dims, key=dims.__getitem__)]


def _written(sizes: Iterable[Size]) -> list[str] | dict[str, list[int] | list[str]]:
    each = sorted(sizes)
    layers = sorted({size.num_layers for size in each})
    dims = [dim for dim in sorted({size.dim for size in each}) if {Size(layer, dim) for layer in layers} <= set(each)]
    if len(each) <= _LISTED or not dims:
        return [str(size) for size in each]
    others = [str(size) for size in each if size.dim not in dims]
    return {"num_layers": layers, "dims": dims} | ({"others": others} if others else {})
