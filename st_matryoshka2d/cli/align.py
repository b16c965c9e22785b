"""`align`: improve every size of a model, and make all of them comparable, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.checkpoints import Source
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.places import Places
from st_matryoshka2d.cli.shape import largest_size
from st_matryoshka2d.cli.tables import table_of_agreement, table_of_sizes
from st_matryoshka2d.cli.texts import Columns, drawn_texts, texts_option
from st_matryoshka2d.sizes import Size, validate_sizes

_SIZES = "Small size to also refine for by gradient descent, such as 2L-32d; may be repeated."
_PROMPT_NAME = "Name of the model's prompt to put in front of each text, unless --prompt is given."
_DEFAULT = "the model's default, if any"
_LAYERS = "Layers that each depth keeps: `ends`, the first and the last ones, score better than `first`."
_LAYERS_DEFAULT = "ends, or what an aligned model has"
_ROTATED = "The coordinates were rotated: embed an index of the model again, or align with --rotation keep."
_KEPT = "The coordinates are those of the model: an index of it stays valid."
_ROTATION = typer.Option(
    help="`keep` the coordinates, or rotate them if that is clearly better for `similarity` or for `search`.",
    show_default="rotate if clearly better for close texts",
    metavar="<how>",
)


def align(
    *,
    texts: Annotated[Path, texts_option("About ten thousand texts like those that will be embedded")],
    columns: Columns = None,
    max_texts: Annotated[int, typer.Option(help="Texts to use; drawn at random if there are more.", min=3)] = 20_000,
    prompt_name: Annotated[str | None, typer.Option(help=_PROMPT_NAME, show_default=_DEFAULT)] = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt to put in front of each text.", show_default=False)] = None,
    sizes: Annotated[
        list[Size] | None,
        options.size_option(_SIZES, show_default="none"),
    ] = None,
    layers: Annotated[Literal["first", "ends"] | None, typer.Option(help=_LAYERS, show_default=_LAYERS_DEFAULT)] = None,
    rotation: Annotated[Literal["keep", "similarity", "search"] | None, _ROTATION] = None,
    batch_size: options.BatchSize = 32,
    places: Places,
    source: Source,
) -> Answer:
    """Give every depth of a model a readout into the space of the whole model; the full size keeps its scores.

    For example:

        st-matryoshka2d align all-MiniLM-L6-v2 --texts texts.csv --out aligned
    """
    places.check(source.token)
    sample = drawn_texts(texts, columns, max_texts, different=True)
    limit = largest_size(source.require())
    if sizes:
        validate_sizes(sizes, limit)

    import st_matryoshka2d
    from st_matryoshka2d.model.declared_agreement import declared_agreement
    from st_matryoshka2d.model.readout import is_rotated
    from st_matryoshka2d.model.trained_sizes import trained_sizes

    model = source.open()
    aligned = st_matryoshka2d.align(
        model,
        sample,
        sizes or None,
        prompt=prompt,
        prompt_name=prompt_name,
        layers=layers,
        rotation=rotation,
        batch_size=batch_size,
    )
    declared, agreement = trained_sizes(aligned.config), declared_agreement(aligned.config)
    saved, lines = places.save(aligned, source.token)
    title = f"Aligned with {len(sample):,} texts for these sizes:"
    rotated = bool(is_rotated(aligned)) and is_rotated(model) is None
    about = {"texts": len(sample), "sizes": list(map(str, declared)), "rotated": rotated}
    data = {**about, "agreement": {str(size): value for size, value in agreement.items()}, **saved}
    told = _ROTATED if rotated else _KEPT
    return Answer([title, "", table_of_sizes(declared), "", *table_of_agreement(agreement), "", told, "", *lines], data)
