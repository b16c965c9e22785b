"""How well each size agrees with the whole model, on texts that were left out of the fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from st_matryoshka2d.aligning.ridge import Fitted
from st_matryoshka2d.sizes import Size, ladder_to, mrl_dims, prefix, sizes_product

if TYPE_CHECKING:
    from jaxtyping import Float


_TEXTS = 512  # compared with each other
_FEWEST = 3  # texts of which each has different similarities to the others
_FEW = 100  # with fewer different texts, sizes gain about a third of what they can
_DEPTHS = 5  # depths that a warning names


def agreement_within(fitted: Mapping[int, Fitted], whole: Float[Tensor, "texts dim"]) -> dict[Size, float]:
    """Measure each size, in the coordinates of all sizes; the full depth is only narrowed."""
    full = Size(max(fitted, default=0) + 1, whole.shape[1])
    pairs = {full.num_layers: (whole[:_TEXTS], whole[:_TEXTS])}
    for depth, of_depth in fitted.items():
        pairs[depth] = (of_depth.predicted[:_TEXTS], whole[of_depth.held[:_TEXTS]])
    sizes = sizes_product(range(1, full.num_layers + 1), [*mrl_dims(full.dim), full.dim])
    measured: dict[Size, float] = {}
    for size in sorted({*ladder_to(full), *sizes}):
        predicted, true = pairs[size.num_layers]
        measured[size] = agreement(prefix(predicted, size.dim), true)
    return measured


def agreement_into(fitted: Mapping[int, Fitted], z: Float[Tensor, "texts out"]) -> dict[Size, float]:
    """Measure how each size agrees with another model in searching its index."""
    measured: dict[Size, float] = {}
    for depth, of_depth in fitted.items():
        predicted, index = of_depth.predicted[:_TEXTS], z[of_depth.held[:_TEXTS]]
        for dim in (*mrl_dims(z.shape[1]), z.shape[1]):
            own = _to_others(prefix(predicted, dim), prefix(index, dim))
            measured[Size(depth, dim)] = _correlation(own, _to_others(index, index))
    return measured


def agreement_across(embedded: Float[Tensor, "texts dim"], index: Float[Tensor, "texts dim"]) -> float:
    """Correlate each text's similarities to the others in an index with those by the index itself; average."""
    return _correlation(_to_others(embedded[:_TEXTS], index[:_TEXTS]), _to_others(index[:_TEXTS], index[:_TEXTS]))


def agreement(embedded: Float[Tensor, "texts dim"], whole: Float[Tensor, "texts whole"]) -> float:
    """Correlate each text's similarities to the others with those by the whole model; average."""
    return _correlation(_to_others(embedded, embedded), _to_others(whole, whole))


def _correlation(left: Float[Tensor, "texts others"], right: Float[Tensor, "texts others"]) -> float:
    return float(cosine_similarity(left, right).mean())


def _to_others(rows: Float[Tensor, "texts dim"], columns: Float[Tensor, "texts dim"]) -> Float[Tensor, "texts others"]:
    """Compute the similarities of each text to the others, as differences from their mean."""
    others = ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    similarities = (normalize(rows) @ normalize(columns).T)[others].view(len(rows), -1)
    return similarities - similarities.mean(1, keepdim=True)


def too_few(fitted: Mapping[int, Fitted], states: Float[Tensor, "texts layers dim"], total: int) -> str | None:
    """Tell what was measured if more texts would align a model clearly better; otherwise None.

    Args:
        fitted: The maps of the depths.
        states: Different texts at every depth, which they were fitted on.
        total: The number of all texts, near copies too.
    """
    if (count := len(states)) >= _FEW or not fitted:
        return None
    texts = f"{total:,} texts"
    if count < total:
        texts += f", of which about {count:,} are not near copies,"
    told = "Sizes hardly change."
    if count > _FEWEST:
        depths = sorted({int(depth) for depth in torch.linspace(1, len(fitted), _DEPTHS).round()})
        changes = []
        for depth in depths:
            held = fitted[depth].held
            sides = (states[held, depth - 1], fitted[depth].predicted)
            before, after = (agreement(rows, states[held, -1]) for rows in sides)
            changes.append(f"{depth}L {before:.2f} to {after:.2f}")
        told = (
            "10,000 like those you will embed gain far more. What these do, on texts left out of "
            "the fit: the correlation of each depth's similarities with the whole model's, with "
            f"the same layers without and with the fit: {', '.join(changes)}."
        )
    return f"{texts} are too few to align this model well. {told}"
