"""What a model is before it is aligned: which layers its depths keep, and whether its dims were trained."""

from __future__ import annotations

import re

from st_matryoshka2d._hosts.sentence_transformers import card_text
from st_matryoshka2d.model.cut import keeping
from st_matryoshka2d.model.exactness import check_depths
from st_matryoshka2d.model.kept_layers import ENDS, Layers
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import Readout

# The losses of sentence-transformers and the paper's title. The word alone is in links of every
# card that it writes.
_TRAINED = re.compile(r"matryoshka(2d)?loss|matryoshka representation", re.IGNORECASE)


def starting_point(pipeline: Pipeline, layers: Layers | None) -> Pipeline:
    """Return the model with the layers of its depths declared; weights are shared."""
    if layers is not None:
        return keeping(pipeline, layers)
    declared, full = pipeline.declaration, pipeline.full
    readouts = [module for module in pipeline.model.modules() if isinstance(module, Readout)]
    chosen_before = declared.layers or any(readout.depths for readout in readouts)
    if chosen_before or any(size.num_layers < full.num_layers for size in declared.sizes):
        return pipeline
    made = keeping(pipeline, ENDS)
    try:
        for name, backbone in made.backbones.items():
            check_depths(made.routes[name].transformer.model, backbone, range(1, full.num_layers))
    except ValueError:
        return pipeline  # its layers only work in a row
    return made


def trained_narrow(pipeline: Pipeline) -> bool:
    """Whether the model was trained for several dims, as its config or its card says: its first coordinates are the best."""
    declared, model = pipeline.declaration, pipeline.model
    card, dims = model.model_card_data, declared.dims
    # A model cut in depth alone declares its full width.
    narrow = min(dims) < pipeline.full.dim if dims else bool(declared.is_matryoshka)
    return (
        narrow or any(_TRAINED.search(str(tag)) for tag in card.tags or []) or bool(_TRAINED.search(card_text(model) or ""))
    )
