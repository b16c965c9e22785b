"""See what a model can be cut to, and cut it: `info`, `truncate` and `asymmetric`."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Annotated

import typer

from st_matryoshka2d import Size
from st_matryoshka2d.cli.models import print_agreement, save_model
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
    model: Model,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Show how deep and wide a model is, and sizes to cut it to.

    For example:

        st-matryoshka2d info all-MiniLM-L6-v2
    """
    import pandas as pd

    from st_matryoshka2d import DataWarning, UsageError, load, sizes_ladder, truncate

    opened = load(model, device="cpu", revision=revision, trust_remote_code=trust_remote_code)
    *below, full = sizes_ladder(opened)
    cuts = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # that a size was not trained
        for size in [Size(0, full.dim), *below, full]:
            with suppress(UsageError):  # most models have no token table, and some have one depth
                cuts[size] = truncate(opened, size)
    kind = getattr(opened.config, "model_type", "token table")
    typer.echo(f"{model}: {kind}, {full.num_layers} layers x {full.dim} dimensions")
    length = f"texts of at most {opened.max_seq_length} tokens"
    typer.echo(f"{opened.similarity_fn_name} similarity, {length}\n")
    weights = [sum(weight.numel() for weight in cut.parameters()) for cut in cuts.values()]
    ladder = pd.DataFrame({"size": map(str, cuts), "parameters": map("{:,}".format, weights)})
    if cuts:
        typer.echo(ladder.to_string(index=False))
    print_agreement(opened)


_SIZE = size_option("Layers and dimensions to keep, such as 6L-128d.")
_QUERIES = size_option("For queries, such as 3L-384d; 0 layers are a token table.")
_DOCUMENTS = size_option("For documents; by default all layers.")


def truncate(
    model: Model,
    size: Annotated[Size, _SIZE],
    out: NewFolder,
    layers: Layers = None,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Cut a model to a size, as a plain checkpoint.

    For example:

        st-matryoshka2d truncate all-MiniLM-L6-v2 --size 6L-64d --out small
    """
    from st_matryoshka2d import load

    cut = load(
        model,
        size,
        layers=layers,
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    save_model(cut, out)


def asymmetric(
    model: Model,
    query_size: Annotated[Size, _QUERIES],
    out: NewFolder,
    document_size: Annotated[Size | None, _DOCUMENTS] = None,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Put two sizes into one checkpoint, for queries and documents.

    For example:

        st-matryoshka2d asymmetric aligned --query-size 3L-384d --out both
    """
    from st_matryoshka2d import asymmetric, load

    opened = load(model, device=device, revision=revision, trust_remote_code=trust_remote_code)
    save_model(asymmetric(opened, query_size, document_size), out)
