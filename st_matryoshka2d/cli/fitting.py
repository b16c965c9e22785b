"""Fit maps, layers and tables to raw text: `align`, `heal` and `fit-queries`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from st_matryoshka2d import Size
from st_matryoshka2d.cli.models import print_agreement, save_model
from st_matryoshka2d.cli.options import (
    TEXTS,
    VECTORS,
    BatchSize,
    Device,
    Layers,
    Model,
    NewFolder,
    Revision,
    TextColumn,
    TrustRemoteCode,
    input_file,
    size_option,
)
from st_matryoshka2d.cli.tables import read_texts

_TEXTS = input_file("About ten thousand texts like those that will be embedded", TEXTS)
_SIZE = size_option("Small size to refine for as well, such as 2L-32d.")
_INTO = typer.Option(
    help="Another model, a Hub id or folder, whose index is searched; or its embeddings of the "
    f"texts, in their order: {VECTORS}."
)
_PROMPT = typer.Option(help="Put in front of each text.")
_PROMPT_NAME = typer.Option(help="Name of the model's prompt to put in front of each text.")
_ROTATION = typer.Option(
    help="Keep the coordinates, so that an index of MODEL stays valid; or take those whose first ones "
    "suit close texts (similarity) or search best. By default, rotate only if that is clearly better."
)


def align(
    model: Model,
    texts: Annotated[Path, _TEXTS],
    out: NewFolder,
    text_column: TextColumn = None,
    size: Annotated[list[Size] | None, _SIZE] = None,
    into: Annotated[str | None, _INTO] = None,
    prompt: Annotated[str | None, _PROMPT] = None,
    prompt_name: Annotated[str | None, _PROMPT_NAME] = None,
    layers: Layers = None,
    rotation: Annotated[Literal["keep", "similarity", "search"] | None, _ROTATION] = None,
    batch_size: BatchSize = 32,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Make every depth of a model good without training.

    For example:

        st-matryoshka2d align all-MiniLM-L6-v2 --texts texts.csv --out aligned
    """
    embedded = into is not None and _is_of_embeddings(Path(into))
    sample = read_texts(texts, text_column, keep_empty=embedded)

    from st_matryoshka2d import align, load

    opened = load(model, device=device, revision=revision, trust_remote_code=trust_remote_code)
    aligned = align(
        opened,
        sample,
        size,
        into=into if into is None or embedded else load(into, device=device),  # whose own code is not trusted
        prompt=prompt,
        prompt_name=prompt_name,
        layers=layers,
        rotation=rotation,
        batch_size=batch_size,
    )
    print_agreement(aligned)
    save_model(aligned, out)


def _is_of_embeddings(path: Path) -> bool:
    """Tell embeddings from another model."""
    return path.suffix in (".npy", ".parquet") or any(path.glob("*.parquet"))


_HEALED_SIZE = size_option("Layers and dimensions to keep, such as 3L-384d.")
_STEPS = typer.Option(help="Steps of gradient descent that follow, each of 64 texts.", min=0)


def heal(
    model: Model,
    size: Annotated[Size, _HEALED_SIZE],
    texts: Annotated[Path, _TEXTS],
    out: NewFolder,
    text_column: TextColumn = None,
    prompt: Annotated[str | None, _PROMPT] = None,
    prompt_name: Annotated[str | None, _PROMPT_NAME] = None,
    layers: Layers = None,
    steps: Annotated[int, _STEPS] = 0,
    batch_size: BatchSize = 32,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Cut a model to one size, and refit the layers that stay.

    For example:

        st-matryoshka2d heal all-MiniLM-L6-v2 --size 3L-384d --texts texts.csv --out small
    """
    sample = read_texts(texts, text_column)

    from st_matryoshka2d import heal, load

    opened = load(model, device=device, revision=revision, trust_remote_code=trust_remote_code)
    given: dict[str, Any] = {"prompt": prompt, "prompt_name": prompt_name, "steps": steps, "batch_size": batch_size}
    healed = heal(opened, sample, size, layers=layers, **given)
    print_agreement(healed)
    save_model(healed, out)


_DOCUMENTS = input_file("All texts that are searched", TEXTS)
_QUERIES = input_file("Real queries, if you have some", TEXTS)
_QUERY_COLUMN = typer.Option(help="Column of the queries, if their file is a table; by default text.")
_EMBEDDINGS = input_file("Embeddings of the documents that exist, in their order", VECTORS)


def fit_queries(
    model: Model,
    documents: Annotated[Path, _DOCUMENTS],
    out: NewFolder,
    text_column: TextColumn = None,
    queries: Annotated[Path | None, _QUERIES] = None,
    query_column: Annotated[str | None, _QUERY_COLUMN] = None,
    embeddings: Annotated[Path | None, _EMBEDDINGS] = None,
    batch_size: BatchSize = 32,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Give a model a token table, for queries without a neural network.

    For example:

        st-matryoshka2d fit-queries all-MiniLM-L6-v2 --documents texts.csv --out fitted
    """
    searched = read_texts(documents, text_column, keep_empty=embeddings is not None)
    asked = None if queries is None else read_texts(queries, [query_column or "text"], "--query-column")

    from st_matryoshka2d import fit_queries, load

    opened = load(model, device=device, revision=revision, trust_remote_code=trust_remote_code)
    given: dict[str, Any] = {"queries": asked, "embeddings": embeddings, "batch_size": batch_size}
    fitted = fit_queries(opened, searched, **given)
    print_agreement(fitted)
    save_model(fitted, out)
