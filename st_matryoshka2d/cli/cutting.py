"""See what a model can be cut to, and cut it: `info`, `truncate` and `asymmetric`."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from st_matryoshka2d import Size
from st_matryoshka2d.cli.models import save_model
from st_matryoshka2d.cli.options import (
    Device,
    Layers,
    Model,
    NewFolder,
    Revision,
    TrustRemoteCode,
    size_option,
)


def info(
    model: Model, revision: Revision = None, trust_remote_code: TrustRemoteCode = False
) -> None:
    """Show how deep and wide a model is, and a ladder of sizes that it can be cut to.

    For example:

        st-matryoshka2d info all-MiniLM-L6-v2
    """
    import pandas as pd

    from st_matryoshka2d import DataWarning, GridResult, load, sizes_ladder, truncate

    opened = load(model, device="cpu", revision=revision, trust_remote_code=trust_remote_code)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # that a size was not trained
        cuts = {size: truncate(opened, size) for size in sizes_ladder(opened)}
    full = max(cuts)
    config = opened.config
    typer.echo(f"{model}: {config.model_type}, {full.num_layers} layers x {full.dim} dimensions")
    typer.echo(
        f"{opened.similarity_fn_name} similarity, texts of at most {opened.max_seq_length} tokens\n"
    )
    weights = [sum(weight.numel() for weight in cut.parameters()) for cut in cuts.values()]
    ladder = pd.DataFrame(
        {"size": map(str, cuts), "parameters": [f"{count:,}" for count in weights]}
    )
    typer.echo(ladder.to_string(index=False))
    if getattr(config, "matryoshka_agreement", None):
        typer.echo(f"\n{GridResult.from_agreement(opened)}")


def truncate(
    model: Model,
    size: Annotated[Size, size_option("Layers and dimensions to keep, such as 6L-128d.")],
    out: NewFolder,
    layers: Layers = None,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Cut a model to a size; the cut is a plain checkpoint that loads without this package.

    For example:

        st-matryoshka2d truncate all-MiniLM-L6-v2 --size 6L-64d --out small
    """
    from st_matryoshka2d import load

    access = {"device": device, "revision": revision, "trust_remote_code": trust_remote_code}
    save_model(load(model, size, layers=layers, **access), out)


def asymmetric(
    model: Model,
    query_size: Annotated[
        Size, size_option("For queries, such as 3L-384d; 0 layers are a token table.")
    ],
    out: NewFolder,
    document_size: Annotated[
        Size | None, size_option("For documents; by default all layers.")
    ] = None,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Put a small size for queries and a large one for documents into one plain checkpoint.

    For example:

        st-matryoshka2d asymmetric aligned --query-size 3L-384d --out both
    """
    from st_matryoshka2d import asymmetric, load

    access = {"device": device, "revision": revision, "trust_remote_code": trust_remote_code}
    save_model(asymmetric(load(model, **access), query_size, document_size), out)
