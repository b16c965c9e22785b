"""`align`: map every depth of a model into its own space or another model's, untrained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

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
_PROMPT_NAME = "Name of the prompt of each text, in both models, unless --prompt is given."
_DEFAULT = "the model's default, if any"
_LAYERS = "Layers that each depth keeps: `ends`, the first and the last ones, score better than `first`."
_LAYERS_DEFAULT = "ends, or what an aligned model has"
_KEPT = "The coordinates are those of the model: an index of it stays valid."
_INTO = (
    "Search the index of another model: its Hub id or folder, or its embeddings of the texts, in "
    "their order: a .npy file, or a Parquet file or a folder of them with a column of vectors, as "
    "`encode_to_parquet` writes. Its own code is not run: of such a model, pass embeddings."
)
_MAX_TEXTS = "Texts to use; drawn at random if there are more. With --into, all are used."
_ROTATION = typer.Option(
    help="`keep` the coordinates, or rotate them if that is clearly better for `similarity` or for `search`.",
    show_default="rotate if clearly better for close texts",
    metavar="<how>",
)


def align(
    *,
    texts: Annotated[Path, texts_option("About ten thousand texts like those that will be embedded")],
    columns: Columns = None,
    into: Annotated[str | None, typer.Option(help=_INTO, show_default="its own space")] = None,
    max_texts: Annotated[int, typer.Option(help=_MAX_TEXTS, min=3)] = 20_000,
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
    """Map every depth of a model into the space of the whole model, or of another one.

    In its own space, the full size keeps its scores. For example:

        st-matryoshka2d align all-MiniLM-L6-v2 --texts texts.csv --out aligned

        st-matryoshka2d align small --texts texts.csv --into large --out mapped
    """
    places.check(source.token)
    # Embeddings that exist have a row for each text.
    most = max_texts if into is None else sys.maxsize
    sample = drawn_texts(texts, columns, most, different=into is None)
    limit = largest_size(source.require())
    if sizes:
        validate_sizes(sizes, limit)
    other = None if into is None else _other(into, source)

    import st_matryoshka2d
    from st_matryoshka2d.model.declared_agreement import agrees_with, declared_agreement
    from st_matryoshka2d.model.readout import is_rotated
    from st_matryoshka2d.model.trained_sizes import trained_sizes

    model = source.open()
    aligned = st_matryoshka2d.align(
        model,
        sample,
        sizes or None,
        into=other,
        prompt=prompt,
        prompt_name=prompt_name,
        layers=layers,
        rotation=rotation,
        batch_size=batch_size,
    )
    declared, agreement = trained_sizes(aligned.config), declared_agreement(aligned.config)
    saved, lines = places.save(aligned, source.token)
    title = f"Aligned with {len(sample):,} texts for these sizes:"
    rotated = bool(is_rotated(aligned)) and is_rotated(model) is None and into is None
    about = {"texts": len(sample), "sizes": list(map(str, declared)), "rotated": rotated}
    measured = {str(size): value for size, value in agreement.items()}
    table = table_of_agreement(agreement, agrees_with(aligned.config))
    told = [] if rotated or into else ["", _KEPT]  # a warning told of a rotation
    shown = [title, "", table_of_sizes(declared), "", *table, *told, "", *lines]
    return Answer(shown, {**about, "agreement": measured, **saved})


def _other(into: str, source: Source) -> Any:
    """Return the path of embeddings, or the other model: `--trust-remote-code` is not about it."""
    path = Path(into)
    if path.suffix in (".npy", ".parquet") or (path.is_dir() and any(path.glob("*.parquet"))):
        return path
    other = Source(into, source.device, token=source.token)
    other.require()
    return other.open()
