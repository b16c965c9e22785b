"""What a model is before it is aligned: which layers its depths keep, and whether its dims were trained."""

from __future__ import annotations

import re

from sentence_transformers import SentenceTransformer

from st_matryoshka2d._hosts.sentence_transformers import card_text
from st_matryoshka2d.model.backbone import find_backbone
from st_matryoshka2d.model.cut import keeping
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.exactness import check_depths
from st_matryoshka2d.model.kept_layers import ENDS, Layers, skips_layers
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import Readout
from st_matryoshka2d.sizes import full_size

# The losses of sentence-transformers and the paper's title. The word alone is in links of every
# card that it writes.
_TRAINED = re.compile(r"matryoshka(2d)?loss|matryoshka representation", re.IGNORECASE)


def starting_point(model: SentenceTransformer, layers: Layers | None) -> SentenceTransformer:
    """Return the model with the layers of its depths declared; weights are shared."""
    if layers is not None:
        return keeping(model, layers)
    readouts = [module for module in model.modules() if isinstance(module, Readout)]
    chosen_before = skips_layers(model.config) or any(readout.depths for readout in readouts)
    if chosen_before or any(size.num_layers < full_size(model).num_layers for size in Declaration.of(model.config).sizes):
        return model
    made = keeping(model, ENDS)
    try:
        for network in Pipeline.of(made).networks:
            backbone = find_backbone(network)
            check_depths(network, backbone, list(range(1, backbone.num_layers)))
    except ValueError:
        return model  # its layers only work in a row
    return made


def trained_narrow(model: SentenceTransformer) -> bool:
    """Whether the model was trained for several dims, as its config or its card says: its first coordinates are the best."""
    card, declaration = model.model_card_data, Declaration.of(model.config)
    dims = declaration.dims
    # A model cut in depth alone declares its full width.
    declared = min(dims) < full_size(model).dim if dims else bool(declaration.is_matryoshka)
    return (
        declared
        or any(_TRAINED.search(str(tag)) for tag in card.tags or [])
        or bool(_TRAINED.search(card_text(model) or ""))
    )
