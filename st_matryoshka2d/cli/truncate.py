"""`truncate`: cut a model to a size and save it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.hub import fetching, pushing, require_token
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = ["truncate"]


def _empty_or_new(folder: Path | None) -> Path | None:
    if folder is not None and folder.is_dir() and any(folder.iterdir()):
        raise typer.BadParameter(f"{folder} is not empty; name a new folder.")
    return folder


def _name_of_repository(name: str | None) -> str | None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    try:
        validate_repo_id(name)  # which lets None pass
    except HFValidationError as error:
        raise typer.BadParameter(f"A repository is called ORG/NAME, or NAME for one of your own. {error}") from error
    return name


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
        str | None,
        typer.Option(
            help="Hub id of a new repository to upload the cut to, such as me/small.", callback=_name_of_repository
        ),
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
    if push is not None:
        require_token(push, token)

    from st_matryoshka2d import load

    with fetching(model, revision):
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
    with TemporaryDirectory() as temporary:
        folder = str(out or temporary)
        _save(cut, folder, push)
        if out is not None:
            places["saved"] = str(out)
        if push is not None:
            with pushing(push):
                places["pushed"] = cut.push_to_hub(push, token=token, private=private, local_model_path=folder)
    parameters = sum(weight.numel() for weight in cut.parameters())
    told = (f"{what.capitalize()}: {where}" for what, where in places.items())
    return Answer(
        [f"{size}: {parameters:,} parameters", *told],
        {"size": str(size), "num_layers": size.num_layers, "dim": size.dim, "parameters": parameters, **places},
        as_json,
    )


def _save(cut: SentenceTransformer, folder: str, name: str | None) -> None:
    """Save a cut with a card that tells what it is a cut of; what it is loaded by is its name on the Hub or the folder."""
    from st_matryoshka2d import add_sizes_to_model_card

    if name is not None:
        cut.model_card_data.set_model_id(name)
    cut.save_pretrained(folder)
    if getattr(cut.config, "matryoshka_cut", None):
        add_sizes_to_model_card(folder)
