"""How well each size agrees with the full one on texts left out of the fit, and whether the texts are too few."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from st_matryoshka2d.aligning.ridge import Fitted
from st_matryoshka2d.dims import prefix
from st_matryoshka2d.sizes import Size, ladder_to, mrl_dims, sizes_product

_TEXTS = 512  # compared with each other
_FEWEST = 3  # texts of which each has different similarities to the others
_FEW = 100  # with fewer different texts, sizes gain little
_COPY = 0.2  # near copies are closer than this share of the median squared distance
_DEPTHS = 5  # depths that a warning names


def kept_agreement(fitted: Mapping[int, Fitted], whole: Float[Tensor, "texts dim"]) -> dict[Size, float]:
    """Measure each size; the full depth is not predicted, only narrowed. Both are in the coordinates of all sizes."""
    full = Size(max(fitted, default=0) + 1, whole.shape[1])
    drawn = {depth: (each.held[:_TEXTS], each.predicted[:_TEXTS]) for depth, each in fitted.items()}
    drawn[full.num_layers] = (places := torch.arange(len(whole))[:_TEXTS], whole[places])
    every = sizes_product(range(1, full.num_layers + 1), [*mrl_dims(full.dim), full.dim])
    return {
        size: agreement(prefix(drawn[size.num_layers][1], size.dim), whole[drawn[size.num_layers][0]])
        for size in sorted({*ladder_to(full), *every})
    }


def agreement(embedded: Float[Tensor, "texts dim"], whole: Float[Tensor, "texts whole"]) -> float:
    """Correlate each text's similarities to the others with those by the whole model; return the mean over texts."""
    return float(cosine_similarity(_to_others(embedded, embedded), _to_others(whole, whole)).mean())


def agreement_across(embedded: Float[Tensor, "texts dim"], index: Float[Tensor, "texts whole"]) -> float:
    """Correlate each text's similarities to the others as an index has them with those by the index alone."""
    narrow = prefix(index, embedded.shape[1])
    return float(cosine_similarity(_to_others(embedded, narrow), _to_others(index, index)).mean())


def _to_others(rows: Float[Tensor, "texts dim"], columns: Float[Tensor, "texts dim"]) -> Float[Tensor, "texts others"]:
    """Compute the similarities of each text to the others, as differences from their mean."""
    others = ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    similarities = (normalize(rows) @ normalize(columns).T)[others].view(len(rows), -1)
    return similarities - similarities.mean(1, keepdim=True)


def too_few(fitted: Mapping[int, Fitted], states: Float[Tensor, "texts layers dim"], total: int) -> str | None:
    """Tell what was measured if the texts are too few to align a model well; None if there are enough.

    Args:
        fitted: The maps of the depths.
        states: Different texts at every depth, which they were fitted on.
        total: The number of all texts, near copies too.
    """
    if (count := len(states)) >= _FEW or not fitted:
        return None
    there = f"{total:,} texts" if count == total else f"{total:,} texts, of which about {count:,} are not near copies,"
    told = "Sizes hardly change."
    if count > _FEWEST:
        depths = sorted({int(depth) for depth in torch.linspace(1, len(fitted), _DEPTHS).round()})
        changes = []
        for depth in depths:
            held = fitted[depth].held
            before, after = (
                agreement(rows, states[held, -1]) for rows in (states[held, depth - 1], fitted[depth].predicted)
            )
            changes.append(f"{depth}L {before:.2f} to {after:.2f}")
        told = (
            "On texts left out of the fit, the correlation of each depth's similarities with the whole model's, with the "
            f"same layers without and with the fit: {', '.join(changes)}."
        )
    return f"{there} are too few to align this model well. {told} Pass some 10,000 texts like those you will embed."


def different(embedded: Float[Tensor, "texts dim"]) -> Bool[Tensor, " texts"]:
    """Mark the texts that are not near copies of earlier ones."""
    unit = normalize(embedded)
    distances = 1 - unit @ unit.T
    pairs = distances[torch.ones_like(distances, dtype=torch.bool).triu(1)]
    return ~(distances <= _COPY * pairs.median()).tril(-1).any(1)
