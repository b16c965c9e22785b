"""See what a model can be cut to, and cut it: `info`, `truncate` and `asymmetric`."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from st_matryoshka2d import Size
from st_matryoshka2d.cli.models import print_agreement, save_model
from st_matryoshka2d.cli.options import (
    TEXTS,
    Device,
    Layers,
    Model,
    NewFolder,
    Revision,
    TextColumn,
    TrustRemoteCode,
    cut_option,
    input_file,
)
from st_matryoshka2d.cli.tables import read_texts
from st_matryoshka2d.errors import UsageError


def info(model: Model, revision: Revision = None, trust_remote_code: TrustRemoteCode = False) -> None:
    """Show how deep and wide a model is, and sizes to cut it to.

    For example:

        st-matryoshka2d info all-MiniLM-L6-v2
    """
    import pandas as pd

    from st_matryoshka2d import DataWarning, load, sizes_ladder, truncate
    from st_matryoshka2d.model.layers import Layers
    from st_matryoshka2d.model.readout import own_weights
    from st_matryoshka2d.model.sides import DOCUMENT, QUERY, sides_of
    from st_matryoshka2d.sizes import full_size, megabytes

    opened = load(model, device="cpu", revision=revision, trust_remote_code=trust_remote_code)
    *below, full = sizes_ladder(opened)
    cuts = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # that a size was not trained
        if not hasattr(opened, "truncate_dim"):  # a reranker and its like have no dims to leave out
            quarters = {full.num_layers * part // 4 for part in (1, 2, 3)} - {0, full.num_layers}
            below = [Size(depth, full.dim) for depth in sorted(quarters)]
        for size in [Size(0, full.dim), *below, full]:
            with suppress(ValueError):  # most models have no token table, and some no cut at each depth
                cuts[size] = truncate(opened, size)
    kind = getattr(opened.config, "model_type", "token table")
    typer.echo(f"{model}: {kind}, {full.num_layers} layers x {full.dim} dimensions")
    if sides := {name: full_size(side).num_layers for name, side in sides_of(opened).items()}:
        typer.echo(f"Layers for queries: {sides[QUERY]}, for documents: {sides[DOCUMENT]}")
    length = f"texts of at most {opened.max_seq_length} tokens"
    similarity = getattr(opened, "similarity_fn_name", None)  # a reranker has none
    typer.echo(f"{similarity} similarity, {length}" if similarity else length)
    typer.echo(f"{Layers.of(opened.config).told}\n" if any(0 < size.num_layers < full.num_layers for size in cuts) else "")
    weights = [own_weights(cut) for cut in cuts.values()]
    counts = [f"{sum(weight.numel() for weight in of_cut):,}" for of_cut in weights]
    sizes = [f"{megabytes(of_cut):.1f}" for of_cut in weights]
    ladder = pd.DataFrame({"size": map(str, cuts), "parameters": counts, "megabytes": sizes})
    if cuts:
        typer.echo(ladder.to_string(index=False))
    print_agreement(opened)


_SIZE = cut_option("Layers and dimensions to keep, such as 6L-128d, or layers alone, such as 6L; by default all.")
_VOCABULARY = input_file(
    "Texts whose tokens to keep, ten thousand or more; repeat it with one file for each language, named after it", TEXTS
)
_TOKENS = typer.Option(help="Tokens to keep in all; by default those of the texts and as many that look like them.", min=1)
_HALF = typer.Option("--half", help="Store the weights in half precision, in half of the bytes.")
_QUERIES = cut_option("For queries, such as 3L-384d or 3L; 0L is a token table.")
_ENCODER = typer.Option(help="Hub id or folder of an encoder for queries, such as a healed cut of MODEL.")
_DOCUMENTS = cut_option("For documents; by default all layers.")


def truncate(
    model: Model,
    out: NewFolder,
    size: Annotated[Any, _SIZE] = None,
    layers: Layers = None,
    vocabulary: Annotated[list[Path] | None, _VOCABULARY] = None,
    max_tokens: Annotated[int | None, _TOKENS] = None,
    text_column: TextColumn = None,
    half: Annotated[bool, _HALF] = False,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Cut a model to a size or a vocabulary, as a plain checkpoint.

    For example:

        st-matryoshka2d truncate all-MiniLM-L6-v2 --size 6L-64d --out small
    """
    texts = {path.stem: read_texts(path, text_column) for path in vocabulary or ()}
    if size is None and not texts:
        raise UsageError("There is nothing to cut. Pass --size, --vocabulary or both.")
    if max_tokens is not None and not texts:
        raise UsageError("--max-tokens needs texts to choose the tokens by: pass --vocabulary too.")

    from st_matryoshka2d import load, truncate

    cut = load(
        model,
        **({"num_layers": size} if isinstance(size, int) else {"size": size}),
        layers=layers,
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    if texts:
        cut = truncate(cut, vocabulary=texts, max_tokens=max_tokens)
    print_agreement(cut)
    save_model(cut.half() if half else cut, out)


def asymmetric(
    model: Model,
    out: NewFolder,
    query_size: Annotated[Any, _QUERIES] = None,
    query: Annotated[str | None, _ENCODER] = None,
    document_size: Annotated[Any, _DOCUMENTS] = None,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Put two sizes into one checkpoint, for queries and documents.

    For example:

        st-matryoshka2d asymmetric aligned --query-size 3L-384d --out both
    """
    if (query_size is None) == (query is None):
        raise UsageError("Pass --query-size or --query: a size of MODEL, or an encoder for queries such as a healed cut.")

    from st_matryoshka2d import asymmetric, load

    opened = load(model, device=device, revision=revision, trust_remote_code=trust_remote_code)
    encoder = query_size if query is None else load(query, device=device, trust_remote_code=trust_remote_code)
    save_model(asymmetric(opened, encoder, document_size), out)
