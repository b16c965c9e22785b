"""Save the model that a command made: in a folder, in a new repository on the Hub, or both."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from st_matryoshka2d.cli.hub import pushing, require_token

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = ["Out", "Private", "Push", "check_places", "saved", "told"]


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
        raise typer.BadParameter(f"A repository name is ORG/NAME, or NAME alone for your own. {error}") from error
    return name


Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder to save the model in, new or empty.", file_okay=False, callback=_empty_or_new),
]
Push = Annotated[
    str | None,
    typer.Option(
        "--push", help="Hub id of a new repository to upload it to, such as me/small.", callback=_name_of_repository
    ),
]
Private = Annotated[bool, typer.Option("--private", help="Make that repository private.")]


def check_places(out: Path | None, push: str | None, private: bool, token: str | None) -> None:
    """Refuse a model that could not be saved before the work that makes it."""
    if out is None and push is None:
        raise typer.BadParameter("Say where the model goes: --out FOLDER, --push ORG/NAME or both.")
    if private and push is None:
        raise typer.BadParameter("--private needs --push.")
    if push is not None:
        require_token(push, token)


def saved(
    model: SentenceTransformer, out: Path | None, push: str | None, private: bool, token: str | None
) -> dict[str, str]:
    """Save a model with a card that lists its sizes and the model it was cut from; return the places."""
    from st_matryoshka2d import add_sizes_to_model_card

    places: dict[str, str] = {}
    with TemporaryDirectory() as temporary:
        folder = str(out or temporary)
        if push is not None:
            model.model_card_data.set_model_id(push)
        model.save_pretrained(folder)
        if getattr(model.config, "matryoshka_cut", None) or getattr(model.config, "matryoshka_sizes", None):
            add_sizes_to_model_card(folder)
        if out is not None:
            places["saved"] = str(out)
        if push is not None:
            with pushing(push):
                places["pushed"] = model.push_to_hub(push, token=token, private=private, local_model_path=folder)
    return places


def told(places: dict[str, str]) -> list[str]:
    """Lines that say where the model was saved."""
    return [f"{what.capitalize()}: {where}" for what, where in places.items()]
