"""What a trained model says in its config: at which dims and sizes it may be asked, and which loss it owes that to."""

from __future__ import annotations

from collections.abc import Collection

from sentence_transformers import SentenceTransformer

from st_matryoshka2d.config_metadata import declare_dims, declare_training, declared_dims
from st_matryoshka2d.layers import routes_of
from st_matryoshka2d.sizes import Size

__all__ = ["declare_trained"]


def declare_trained(model: SentenceTransformer, sizes: Collection[Size], loss: str) -> None:
    """Write the trained sizes into the model's configs, unless the model itself is frozen."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return
    for route in routes_of(model).values():
        config = route.transformer.model.config
        declare_dims(config, {*declared_dims(config), *(size.dim for size in sizes)})
        declare_training(config, sizes, loss)
