"""`align-into`: map every depth of a model into the space of another model, to search its index."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.checkpoints import Source
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.places import Places
from st_matryoshka2d.cli.tables import table_of_agreement
from st_matryoshka2d.cli.texts import Columns, drawn_texts, texts_option

_INTO = (
    "The other model, a Hub id or folder; or its embeddings of the texts, in their order: a .npy file, or a Parquet "
    "file or a folder of them with a column of vectors, as `encode_to_parquet` writes."
)
_PROMPT_NAME = "Name of the prompt of all texts, in both models."


def align_into(
    *,
    texts: Annotated[Path, texts_option("Texts of the index and texts like the queries")],
    into: Annotated[str, typer.Option(help=_INTO, show_default=False)],
    columns: Columns = None,
    prompt_name: Annotated[str | None, typer.Option(help=_PROMPT_NAME, show_default="their defaults, if any")] = None,
    units: Annotated[
        int | None, typer.Option(help="Random hidden units; 0 for affine maps.", min=0, show_default="by the texts, to 4096")
    ] = None,
    batch_size: options.BatchSize = 32,
    places: Places,
    source: Source,
) -> Answer:
    """Map every depth of a model into the space of another model, to search an index that the other one has made.

    For example:

        st-matryoshka2d align-into small --texts texts.csv --into large --out mapped
    """
    places.check(source.token)
    rows = drawn_texts(texts, columns, sys.maxsize)
    source.require()
    other = _other(into, source)

    import st_matryoshka2d
    from st_matryoshka2d.model.declared_agreement import declared_agreement

    mapped = st_matryoshka2d.align_into(
        source.open(), rows, other, prompt_name=prompt_name, units=units, batch_size=batch_size
    )
    agreement = declared_agreement(mapped.config)
    saved, lines = places.save(mapped, source.token)
    data = {"texts": len(rows), "agreement": {str(size): value for size, value in agreement.items()}, **saved}
    title = f"Mapped into the space of {into} with {len(rows):,} texts."
    return Answer([title, "", *table_of_agreement(agreement, "the other model"), "", *lines], data)


def _other(into: str, source: Source) -> Any:
    """Return the path of embeddings, or the other model."""
    path = Path(into)
    if path.suffix in (".npy", ".parquet") or (path.is_dir() and any(path.glob("*.parquet"))):
        return path
    other = Source(into, source.device, source.trust_remote_code, None, source.token)
    other.require()
    return other.open()
