"""The agreement that `align` measured, as the data of a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.grid.pivots import metric_name
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.layers import Layers
from st_matryoshka2d.sizes import full_size

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SCORE, AGREEMENT = "score", "agreement"  # what a grid has of each size

_METRIC = "correlation of similarities"


def agreement_of(model: SentenceTransformer) -> dict[str, Any]:
    """Implement `GridResult.from_agreement`: return the fields of the grid."""
    # Imports torch, which reading scores does not need.
    from st_matryoshka2d.model.identity import model_name, model_revision

    full, measured = full_size(model), Declaration.of(model.config).agreement
    if not measured:
        raise UsageError(
            "Nothing says how well the sizes of this model agree with the whole model: it was not aligned, or was trained "
            "afterwards. `align` measures it, without labels; `evaluate` scores sizes on labelled data."
        )
    place = {"task": AGREEMENT, "split": "left out", "subset": "default", "metric": _METRIC, "is_main": True}
    rows = [{**place, "num_layers": size.num_layers, "dim": size.dim, "score": value} for size, value in measured.items()]
    about = {"model": model_name(model), "revision": model_revision(model), "full_size": str(full)}
    return {"frame": pd.DataFrame(rows), "layers": Layers.of(model.config).named, **about}


def measure_of(frame: pd.DataFrame, task: str | None, metric: str | None = None) -> str:
    """Tell whether the numbers of a grid are scores, by a metric that was asked for, or agreement."""
    return AGREEMENT if metric_name(frame, task, metric) == _METRIC else metric or SCORE
