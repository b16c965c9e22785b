"""Fit maps and tables to raw text: `align` and `fit-queries`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from st_matryoshka2d import Size
from st_matryoshka2d.cli.models import save_model
from st_matryoshka2d.cli.options import (
    BatchSize,
    Device,
    Layers,
    Model,
    NewFolder,
    Revision,
    TextColumn,
    TrustRemoteCode,
    size_option,
)
from st_matryoshka2d.cli.tables import TEXTS, read_texts

_INTO = (
    "Another model, a Hub id or folder, whose index is searched; or its embeddings of the texts, in "
    "their order: .npy, .parquet, or a folder of .parquet."
)
_ROTATION = (
    "keep the coordinates, so that an index of MODEL stays valid; or rotate them if that is clearly "
    "better for close texts (similarity) or in search. By default as similarity, and told."
)


def align(
    model: Model,
    texts: Annotated[
        Path,
        typer.Option(help=f"About ten thousand texts like those to embed: {TEXTS}.", exists=True),
    ],
    out: NewFolder,
    text_column: TextColumn = None,
    size: Annotated[
        list[Size] | None,
        size_option("Small size to refine for as well, such as 2L-32d; repeatable."),
    ] = None,
    into: Annotated[str | None, typer.Option(help=_INTO)] = None,
    prompt: Annotated[str | None, typer.Option(help="Put in front of each text.")] = None,
    prompt_name: Annotated[
        str | None, typer.Option(help="Name of the prompt to put in front of each text.")
    ] = None,
    layers: Layers = None,
    rotation: Annotated[
        Literal["keep", "similarity", "search"] | None, typer.Option(help=_ROTATION)
    ] = None,
    batch_size: BatchSize = 32,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Make every depth of a model good without training, by raw text.

    For example:

        st-matryoshka2d align all-MiniLM-L6-v2 --texts texts.csv --out aligned
    """
    sample = read_texts(texts, text_column)

    from st_matryoshka2d import align, load

    opened = load(model, device=device, revision=revision, trust_remote_code=trust_remote_code)
    aligned = align(
        opened,
        sample,
        size,
        into=None if into is None else _other(into, device),
        prompt=prompt,
        prompt_name=prompt_name,
        layers=layers,
        rotation=rotation,
        batch_size=batch_size,
        show_progress_bar=True,  # also prints what each size keeps
    )
    save_model(aligned, out)


def _other(name: str, device: str | None) -> Any:
    """Return the path of embeddings, or the other model; its own code is not trusted."""
    from st_matryoshka2d import load

    path = Path(name)
    if path.suffix in (".npy", ".parquet") or any(path.glob("*.parquet")):
        return path
    return load(name, device=device)


def fit_queries(
    model: Model,
    documents: Annotated[
        Path, typer.Option(help=f"All texts that are searched: {TEXTS}.", exists=True)
    ],
    out: NewFolder,
    text_column: TextColumn = None,
    queries: Annotated[
        Path | None, typer.Option(help=f"Real queries, if there are any: {TEXTS}.", exists=True)
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(
            help="Embeddings of the documents that exist, in their order: .npy, .parquet, or a "
            "folder of .parquet.",
            exists=True,
        ),
    ] = None,
    batch_size: BatchSize = 32,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Give a model a token table, for queries without a network: 0 layers.

    For example:

        st-matryoshka2d fit-queries all-MiniLM-L6-v2 --documents texts.csv --out fitted
    """
    searched = read_texts(documents, text_column)
    asked = None if queries is None else read_texts(queries, text_column)

    from st_matryoshka2d import fit_queries, load

    opened = load(model, device=device, revision=revision, trust_remote_code=trust_remote_code)
    fitted = fit_queries(
        opened, searched, queries=asked, embeddings=embeddings, batch_size=batch_size
    )
    save_model(fitted, out)
