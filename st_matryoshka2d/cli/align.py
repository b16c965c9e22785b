"""`align`: improve every size of a model, and make all of them comparable, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from st_matryoshka2d.cli import hub, options
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.tables import Columns, check_columns, drawn_texts, table_of_sizes, texts_in, texts_option
from st_matryoshka2d.sizes import Size

Layers: TypeAlias = Literal["first", "ends"]


def align(
    model: options.Model,
    texts: Annotated[Path, texts_option("About ten thousand texts like those that will be embedded")],
    columns: Columns = None,
    max_texts: Annotated[int, typer.Option(help="Texts to use; drawn at random if there are more.", min=3)] = 20_000,
    sizes: Annotated[
        list[Size] | None,
        options.size_option("Small size to also refine for, such as 2L-32d; may be repeated.", show_default="none"),
    ] = None,
    layers: Annotated[
        Layers | None,
        typer.Option(help="Layers that each depth keeps; `ends` score better, and take longer to train and to score."),
    ] = None,
    batch_size: options.BatchSize = 32,
    out: hub.Out = None,
    push: hub.Push = None,
    private: hub.Private = False,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    revision: options.Revision = None,
    token: options.Token = None,
    as_json: options.AsJson = False,
) -> Answer:
    """Give every depth of a model a readout into the space of the whole model; the full size stays as it is."""
    check_columns(texts, columns)
    hub.check_places(out, push, private, token)
    sample = drawn_texts(texts_in(texts, columns).drop_duplicates(), max_texts)
    hub.require_model(model, revision, token)

    import st_matryoshka2d
    from st_matryoshka2d.config_metadata import trained_sizes

    whole = hub.open_model(model, device=device, trust_remote_code=trust_remote_code, revision=revision, token=token)
    aligned = st_matryoshka2d.align(
        whole, sample, sizes or None, layers=layers, batch_size=batch_size, show_progress_bar=True
    )
    declared = trained_sizes(aligned.config)
    places = hub.saved(aligned, out, push, private, token)
    return Answer(
        [
            f"Aligned with {len(sample):,} texts for these sizes:",
            "",
            table_of_sizes(declared),
            "",
            *hub.place_lines(places),
        ],
        {"texts": len(sample), "sizes": list(map(str, declared)), **places},
        as_json,
    )
