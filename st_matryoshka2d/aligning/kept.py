"""How much of the whole model each size keeps: how well the two agree on which texts are alike."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from st_matryoshka2d.aligning.gather import Gathered
from st_matryoshka2d.aligning.ridge import Affine
from st_matryoshka2d.dims import prefix
from st_matryoshka2d.sizes import Size, ladder_to, mrl_dims, sizes_product

_TEXTS = 512  # compared with each other


def kept_agreement(gathered: Mapping[str, Gathered], readouts: Mapping[str, Mapping[int, Affine]]) -> dict[Size, float]:
    """Correlate each text's similarities to other texts by a size with those by the full size; return means over texts."""
    by_route = [_of_route(route, readouts[name]) for name, route in gathered.items()]
    return {size: sum(measured[size] for measured in by_route) / len(by_route) for size in by_route[0]}


def _of_route(route: Gathered, readouts: Mapping[int, Affine]) -> dict[Size, float]:
    full = Size(route.num_layers, route.dim)
    every = sizes_product(range(1, full.num_layers + 1), [*mrl_dims(full.dim), full.dim])
    drawn = torch.randperm(len(route.sample), generator=torch.Generator().manual_seed(0))[:_TEXTS]
    embedded = {depth: readout(route.sample[drawn, depth - 1]) for depth, readout in readouts.items()}
    whole = _to_others(embedded[full.num_layers])
    measured = {}
    for size in sorted({*ladder_to(full), *every}):
        by_size = _to_others(prefix(embedded[size.num_layers], size.dim))
        measured[size] = float(cosine_similarity(by_size, whole).mean())
    return measured


def _to_others(rows: Float[Tensor, "texts dim"]) -> Float[Tensor, "texts others"]:
    """Compute the similarities of each text to the others, as differences from their mean."""
    unit = normalize(rows)
    others = ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    similarities = (unit @ unit.T)[others].view(len(rows), -1)
    return similarities - similarities.mean(1, keepdim=True)
