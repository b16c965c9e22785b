"""`truncate`: cut a model to a size and save it."""

from __future__ import annotations

from typing import Annotated

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.checkpoints import Source
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.places import Places
from st_matryoshka2d.cli.shape import largest_size
from st_matryoshka2d.sizes import Size, within


def truncate(
    size: Annotated[Size, options.size_option("Layers and dimensions to keep, such as 6L-128d.", show_default=False)],
    places: Places,
    source: Source,
    layers: options.Layers = None,
) -> Answer:
    """Cut a model to a size; the cut is a plain checkpoint that loads without this package.

    For example:

        st-matryoshka2d truncate all-MiniLM-L6-v2 --size 6L-64d --out small
    """
    places.check(source.token)
    limit = largest_size(source.require())
    within(size.num_layers, limit.num_layers, "num_layers", least=0)
    within(size.dim, limit.dim, "dim")

    from st_matryoshka2d import load

    with source.fetching() as (name, keywords):
        cut = load(name, size, layers=layers, **keywords)
    saved, lines = places.save(cut, source.token)
    parameters = sum(weight.numel() for weight in cut.parameters())
    data = {"size": str(size), "num_layers": size.num_layers, "dim": size.dim, "parameters": parameters, **saved}
    return Answer([f"{size}: {parameters:,} parameters", *lines], data)
