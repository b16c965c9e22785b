"""`encode`: embed a file of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.checkpoints import Source
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.shape import largest_size
from st_matryoshka2d.cli.texts import TEXT_FILES, TEXT_FOLDER, text_rows
from st_matryoshka2d.files.atomic import check_writable_folder
from st_matryoshka2d.sizes import Size, validate_sizes

_OUT = typer.Argument(
    help="Folder for the Parquet files: new, or that of a stopped run.", show_default=False, file_okay=False
)
_SIZE = options.size_option("A size such as 6L-128d; may be repeated.", "--size", show_default="the full size")
_COLUMN = "The column of texts. The other columns are copied."
_PROMPT_NAME = "Name of the model's prompt to put in front of each text."
_NORMALIZE = "Scale the embeddings to unit length, after the dimensions are cut."
_SHARD = "Texts in a Parquet file; a run continues after the last whole file."


def encode(
    source: Source,
    texts: Annotated[Path, options.file_argument("The texts", TEXT_FILES, TEXT_FOLDER)],
    out: Annotated[Path, _OUT],
    *,
    sizes: Annotated[list[Size] | None, _SIZE] = None,
    column: Annotated[str, typer.Option(help=_COLUMN)] = "text",
    prompt_name: Annotated[str | None, typer.Option(help=_PROMPT_NAME, show_default="the model's default, if any")] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help=_NORMALIZE)] = False,
    shard_size: Annotated[int, typer.Option(help=_SHARD, min=1)] = 10_000,
    batch_size: options.BatchSize = 32,
) -> Answer:
    """Embed a file of texts at one or several sizes, into Parquet files. Call it again to continue a run that was stopped.

    For example:

        st-matryoshka2d encode all-MiniLM-L6-v2 texts.csv embeddings --size 2L-64d
    """
    rows = text_rows(texts, column)
    limit = largest_size(source.require())
    if sizes:
        validate_sizes(sizes, limit, least=0)
    check_writable_folder(out)

    from datasets import Dataset

    from st_matryoshka2d import encode_to_parquet
    from st_matryoshka2d.sizes import full_size

    model = source.open()
    wanted = sizes or [full_size(model)]
    files = encode_to_parquet(
        model,
        Dataset(rows),
        out,
        wanted,
        text=column,
        shard_size=shard_size,
        normalize_embeddings=normalize,
        prompt_name=prompt_name,
        batch_size=batch_size,
    )
    names = list(map(str, wanted))
    data = {"model": source.model, "texts": len(rows), "sizes": names, "files": list(map(str, files))}
    return Answer([f"Embedded {len(rows):,} texts at {', '.join(names)}."], data, [out])
