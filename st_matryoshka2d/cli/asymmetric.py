"""`asymmetric`: put two sizes of an aligned model into one checkpoint."""

from __future__ import annotations

from typing import Annotated

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.checkpoints import Source
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.places import Places
from st_matryoshka2d.cli.shape import largest_size
from st_matryoshka2d.sizes import Size, validate_sizes

_QUERY = "Layers and dimensions for queries, such as 3L-384d. 0 layers are a token table."
_DOCUMENT = "Layers and dimensions for documents. If the dimensions differ, both sides get the fewer."


def asymmetric(
    *,
    query: Annotated[Size, options.size_option(_QUERY, show_default=False)],
    document: Annotated[Size | None, options.size_option(_DOCUMENT, show_default="all layers")] = None,
    places: Places,
    source: Source,
) -> Answer:
    """Put a small size for queries and a large one for documents into one plain checkpoint.

    The model must be aligned, or have a token table for queries with --query 0L-384d.

    For example:

        st-matryoshka2d asymmetric aligned --query 3L-384d --out both
    """
    places.check(source.token)
    limit = largest_size(source.require())
    for name, size in (("--query", query), ("--document", document)):
        if size is not None:
            validate_sizes([size], limit, name, least=0 if name == "--query" else 1)

    import st_matryoshka2d
    from st_matryoshka2d.model.sides import side_of
    from st_matryoshka2d.sizes import full_size

    made = st_matryoshka2d.asymmetric(source.open(), query, document)
    saved, lines = places.save(made, source.token)
    parameters: dict[str, int] = {}
    shown: list[str] = []
    sizes: dict[str, str] = {}
    for name in ("query", "document"):
        side = side_of(made, name)
        sizes[name] = str(full_size(side))
        parameters[name] = sum(weight.numel() for weight in side.parameters())
        shown.append(f"{name.capitalize()}: {sizes[name]}, {parameters[name]:,} parameters")
    return Answer([*shown, *lines], {**sizes, "parameters": parameters, **saved})
