"""Warn of sizes that a model was not trained for."""

from __future__ import annotations

from collections.abc import Iterable

from st_matryoshka2d.errors import DataWarning, warn
from st_matryoshka2d.model.declaration import ALIGN, Declaration
from st_matryoshka2d.model.layers import Layers, ends
from st_matryoshka2d.sizes import Size

# An untrained model keeps 92 % of its search scores with a third of its dims, 79 % with a sixth:
# docs/other_ways.md
_FEWEST = 5


def nearest(size: Size, trained: Iterable[Size]) -> list[Size]:
    """Return the trained sizes nearest to a size: one smaller and one larger, if they exist."""
    # Layers make most of the cost, so the nearest in layers comes first, and of those the nearest
    # in dims.
    others = sorted(trained)
    others.sort(key=lambda other: (abs(other.num_layers - size.num_layers), abs(other.dim - size.dim)))
    return [*[other for other in others if other < size][:1], *[other for other in others if other > size][:1]]


def warn_if_untrained(declaration: Declaration, size: Size, full: Size) -> None:
    """Warn, two calls up, if the model was not trained at this size, or nothing says that it was trained for any."""
    trained = declaration.sizes
    # a token table was fitted, or there is none
    if size == full or size in trained or not size.num_layers:
        return
    if declaration.readouts == [] and size.num_layers < full.num_layers:
        return  # `require_readouts` has told it of a cut of an aligned model
    told = _untrained_size(declaration, size, full) if trained else _untrained_model(declaration, size, full)
    if told:
        warn(told, DataWarning)


def _untrained_size(declaration: Declaration, size: Size, full: Size) -> str:
    near = nearest(size, declaration.sizes)
    sides = [f"{other} ({'smaller' if other < size else 'larger'})" for other in near]
    how = "aligned for" if declaration.loss == ALIGN else "trained at"
    kept = ", ".join(str(layer + 1) for layer in Layers.declared(declaration, full.num_layers).kept(size.num_layers))
    of = f" with layers {kept}" if size.num_layers < full.num_layers else ""
    return (
        f"This model was not {how} {size}{of}, and may be much worse there. The nearest sizes that it was {how}: "
        f"{', '.join(sides)}. Score {size}, with `evaluate` or the command `grid`. To improve it, add it to the `sizes` of "
        "the loss or of `align`."
    )


def _untrained_model(declaration: Declaration, size: Size, full: Size) -> str | None:
    """Tell of any model with fewer layers, and of one with few dims unless it declares that it was trained for them."""
    dims = declaration.dims
    narrow = size.dim < (min(dims) if dims else full.dim) and size.dim * _FEWEST < full.dim
    if size.num_layers < full.num_layers:
        lost = "fewer layers"
    elif narrow and (dims or not declaration.is_matryoshka):
        lost = "less than a fifth of its dims"
    else:
        return None
    told = ""
    if lost == "fewer layers" and size.num_layers > 1 and declaration.layers is None:
        kept = ", ".join(map(str, ends(size.num_layers, full.num_layers)))
        told = (
            f"It keeps layers {kept}; one whose first layers were trained, by AdaptiveLayerLoss or 2DMSE elsewhere or in an "
            'adapter that PEFT merged, needs layers="first". '
        )
    better = (
        "`heal` this size, or, for embeddings, `align` the model for all depths"
        if lost == "fewer layers"
        else "`align` the model"
    )
    if declaration.origin is not None:  # in a space of its own, a cut would not find what the whole model embedded
        better = "`align` the whole model that this is a cut of, and cut that"
    # Without the dims, so that a loop over them warns once.
    return (
        f"Nothing says that this model was aligned or trained for {lost}, and it may be far worse with them. {told}Score "
        f"the size, with `evaluate` or the command `grid`. To improve it, {better}."
    )
