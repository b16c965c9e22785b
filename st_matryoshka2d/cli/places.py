"""Save models, and upload them to new repositories."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from st_matryoshka2d.cli.hub_errors import LOG_IN, explained
from st_matryoshka2d.files.atomic import check_writable_folder, share_weights

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_NOTHING = "Nothing was uploaded"


def _empty_or_new(folder: Path | None) -> Path | None:
    if folder is not None and folder.is_dir() and any(folder.iterdir()):
        raise typer.BadParameter(f"{folder} is not empty; name a new folder.")
    return folder


def _name_of_repository(name: str | None) -> str | None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    try:
        validate_repo_id(name)  # accepts None
    except HFValidationError as error:
        raise typer.BadParameter(f"A repository name is ORG/NAME, or NAME alone for your own. {error}") from error
    return name


_OUT = typer.Option("--out", help="Folder to save the model in, new or empty.", file_okay=False, callback=_empty_or_new)
_PUSH = "Hub id of a new repository to upload it to, such as me/small."


@dataclass(frozen=True)
class Places:
    """Where a model goes: a folder, a repository on the Hub, or both."""

    out: Annotated[Path | None, _OUT] = None
    push: Annotated[str | None, typer.Option("--push", help=_PUSH, callback=_name_of_repository)] = None
    private: Annotated[bool, typer.Option("--private", help="Make that repository private.")] = False

    def check(self, token: str | None) -> None:
        """Check, before any work, that the model can be saved or uploaded."""
        if self.out is None and self.push is None:
            raise typer.BadParameter("Say where the model goes: --out FOLDER, --push ORG/NAME or both.")
        if self.private and self.push is None:
            raise typer.BadParameter("--private needs --push.")
        if self.push is not None:
            _check_new(self.push, token)
        if self.out is not None:
            is_new = not self.out.exists()
            check_writable_folder(self.out)
            if is_new:
                self.out.rmdir()  # until there is a model to save

    def save(self, model: SentenceTransformer, token: str | None) -> tuple[dict[str, str], list[str]]:
        """Save a model with a card of its sizes and origin; return where, as data and as lines."""
        from st_matryoshka2d import add_sizes_to_model_card

        places: dict[str, str] = {}
        with TemporaryDirectory() as temporary:
            folder = str(self.out or temporary)
            if self.push is not None:
                model.model_card_data.set_model_id(self.push)
            model.save_pretrained(folder)
            share_weights(folder)
            if getattr(model.config, "matryoshka_cut", None) or getattr(model.config, "matryoshka_sizes", None):
                add_sizes_to_model_card(folder)
            if self.out is not None:
                places["saved"] = str(self.out)
            if self.push is not None:
                places["pushed"] = _uploaded(model, folder, self.push, token=token, private=self.private)
        return places, [f"{what.capitalize()}: {where}" for what, where in places.items()]


def _check_new(repository: str, token: str | None) -> None:
    """Refuse an upload without a token, and one to a repository that exists."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    if "authorization" not in build_hf_headers(token=token):
        raise ValueError(f"An upload to {repository} needs a token: {LOG_IN}.")
    api = HfApi(token=token)
    with _uploading(repository):
        name = repository if "/" in repository else f"{api.whoami()['name']}/{repository}"
        if api.repo_exists(name):
            raise ValueError(f"{_NOTHING}. {_taken(repository)}")


def _uploaded(model: SentenceTransformer, folder: str, repository: str, **settings: Any) -> str:
    with _uploading(repository):
        return model.push_to_hub(repository, local_model_path=folder, **settings)


def _uploading(repository: str) -> AbstractContextManager[None]:
    """Explain why the Hub refuses an upload."""
    refusals = {
        401: f"The Hub rejected the token for {repository}: {LOG_IN}.",
        403: f"The token has no write access to {repository}; choose a repository and a token that has.",
        409: _taken(repository),
    }
    reasons = {status: f"{_NOTHING}. {refusal}" for status, refusal in refusals.items()}
    return explained(reasons, f"{_NOTHING}:")


def _taken(repository: str) -> str:
    return f"{repository} already exists on the Hub; name a new repository."
