"""Choose the layers that each depth keeps: those whose embeddings of a few texts are closest to the whole model's."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from torch.nn.functional import cosine_similarity, normalize
from tqdm.auto import tqdm

from st_matryoshka2d.aligning.sample import Gathered, Text, gather
from st_matryoshka2d.model.cut import keeping
from st_matryoshka2d.model.kept_layers import LayersByDepth, ends
from st_matryoshka2d.model.pipeline import Pipeline

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

_TEXTS, _FEWEST = 128, 50  # that are embedded with each choice; fewer cannot tell choices apart
_CHARACTERS = 300  # of a text: enough to tell, and soon embedded
_MORE = (0, -1, 1, -2, 2)  # layers from the end, compared with half of them


def closest_layers(pipeline: Pipeline, texts: Sequence[Text], batch_size: int, hidden: bool | None) -> LayersByDepth:
    """Return how many of the first and of the last layers each depth keeps; with few texts, half of each."""
    total = pipeline.full.num_layers
    some = [text._replace(text=text.text[:_CHARACTERS]) for text in texts[:_TEXTS]]
    best = {depth: (-1.0, ends(depth, total)) for depth in range(1, total)}
    for more in tqdm(_MORE if len(some) >= _FEWEST else (), "Choosing layers", disable=hidden):
        tried = {depth: ends(depth, total, more) for depth in best}
        by_route = gather(keeping(pipeline, tried), some, batch_size, hidden=True, close=False)
        for depth, layers in tried.items():
            closeness = fmean(_closeness(route, depth) for route in by_route.values())
            best[depth] = max(best[depth], (closeness, layers), key=lambda choice: choice[0])
    return {depth: layers for depth, (_, layers) in best.items()}


def _closeness(route: Gathered, depth: int) -> float:
    """Return the mean cosine with the whole model's embeddings; deviations from the mean, which a readout can move."""
    return float(cosine_similarity(_deviations(route.at(depth)), _deviations(route.whole)).mean())


def _deviations(rows: Float[Tensor, "texts dim"]) -> Float[Tensor, "texts dim"]:
    unit = normalize(rows)
    return unit - unit.mean(0)
