"""Where a model goes that a command made: a folder, a new repository on the Hub, or both."""

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
        raise typer.BadParameter(f"A repository is called ORG/NAME, or NAME for one of your own. {error}") from error
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
    """Refuse what cannot be saved before the work that makes it."""
    if out is None and push is None:
        raise typer.BadParameter("Say where the model goes: --out FOLDER, --push ORG/NAME or both.")
    if private and push is None:
        raise typer.BadParameter("--private needs --push.")
    if push is not None:
        require_token(push, token)


def saved(
    model: SentenceTransformer, out: Path | None, push: str | None, private: bool, token: str | None
) -> dict[str, str]:
    """Save a model, with a card that tells its sizes and what it is a cut of, if it is one."""
    places: dict[str, str] = {}
    with TemporaryDirectory() as temporary:
        folder = str(out or temporary)
        _save(model, folder, push)
        if out is not None:
            places["saved"] = str(out)
        if push is not None:
            with pushing(push):
                places["pushed"] = model.push_to_hub(push, token=token, private=private, local_model_path=folder)
    return places


def _save(model: SentenceTransformer, folder: str, name: str | None) -> None:
    from st_matryoshka2d import add_sizes_to_model_card

    if name is not None:
        model.model_card_data.set_model_id(name)
    model.save_pretrained(folder)
    if getattr(model.config, "matryoshka_cut", None) or getattr(model.config, "matryoshka_sizes", None):
        add_sizes_to_model_card(folder)


def told(places: dict[str, str]) -> list[str]:
    """The places in words."""
    return [f"{what.capitalize()}: {where}" for what, where in places.items()]
