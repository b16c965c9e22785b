"""`truncate`: cut a model to a size and save it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.sizes import Size

__all__ = ["truncate"]


def _empty_or_new(folder: Path | None) -> Path | None:
    if folder is not None and folder.is_dir() and any(folder.iterdir()):
        raise typer.BadParameter(f"{folder} is not empty; name a new folder.")
    return folder


def truncate(
    model: options.Model,
    size: Annotated[
        Size,
        typer.Option(
            help="Layers and dimensions to keep, such as 6L-128d.",
            parser=options.read_size,
            metavar="SIZE",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder to save the cut in, new or empty.", file_okay=False, callback=_empty_or_new)
    ] = None,
    push: Annotated[
        str | None, typer.Option(help="Hub id of a new repository to upload the cut to, such as me/small.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make that repository private.")] = False,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    revision: options.Revision = None,
    token: options.Token = None,
    as_json: options.AsJson = False,
) -> Answer:
    """Cut a model to a size; the cut is a plain checkpoint that loads without this package."""
    if out is None and push is None:
        raise typer.BadParameter("Say where the cut goes: --out FOLDER, --push ORG/NAME or both.")
    if private and push is None:
        raise typer.BadParameter("--private is about the repository of --push, which is not given.")

    from st_matryoshka2d import load

    cut = load(
        model,
        size.num_layers,
        size.dim,
        device=device,
        trust_remote_code=trust_remote_code,
        revision=revision,
        token=token,
    )
    places: dict[str, str] = {}
    if out is not None:
        cut.save_pretrained(str(out))
        places["saved"] = str(out)
    if push is not None:
        places["pushed"] = cut.push_to_hub(push, token=token, private=private)
    parameters = sum(weight.numel() for weight in cut.parameters())
    told = (f"{what.capitalize()}: {where}" for what, where in places.items())
    return Answer(
        [f"{size}: {parameters:,} parameters", *told],
        {"size": str(size), "num_layers": size.num_layers, "dim": size.dim, "parameters": parameters, **places},
        as_json,
    )
