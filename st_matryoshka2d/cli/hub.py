"""Open models, save and upload cuts, and explain the Hub's errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_LOG_IN = "log in with `hf auth login`, or give --token"


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


def require_model(name: str, revision: str | None, token: str | None) -> None:
    """Refuse a model that does not exist before any slow import."""
    folder = Path(name)
    if folder.exists():
        if not any((folder / file).is_file() for file in ("modules.json", "config.json")):
            raise ValueError(f"{name} is not a model folder: it has neither modules.json nor config.json.")
        return
    from huggingface_hub import errors, resolve_revision

    cache = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    with fetching(name, revision):
        if "/" not in name:  # of sentence-transformers, or an early model without an organisation
            with suppress(errors.RepositoryNotFoundError, errors.RevisionResolutionError):
                resolve_revision(f"sentence-transformers/{name}", revision=revision, token=token, cache_dir=cache)
                return
        resolve_revision(name, revision=revision, token=token, cache_dir=cache)


def open_model(name: str, **kwargs: Any) -> SentenceTransformer:
    """Load the whole model."""
    # `within_reach` fails at the first request if the model is missing or the Hub cannot be reached.
    from sentence_transformers import SentenceTransformer

    from st_matryoshka2d.hub.checkpoint import opened, within_reach
    from st_matryoshka2d.hub.readouts import add_readouts

    with fetching(name, kwargs.get("revision")):
        checkpoint, kwargs = within_reach(*opened(name, kwargs), None)
        model = SentenceTransformer(checkpoint.name, **kwargs)
        add_readouts(model, checkpoint, model.config, getattr(model.config, "num_hidden_layers", 0))
        return model


@contextmanager
def fetching(name: str, revision: str | None) -> Iterator[None]:
    """Turn errors of a download into messages for the command line."""
    from huggingface_hub import errors
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    try:
        yield
    except errors.GatedRepoError as error:
        raise ValueError(f"{name} is gated: accept its conditions on the Hub, and {_LOG_IN}.") from error
    except errors.RepositoryNotFoundError as error:
        nor = "" if "/" in name else f", and no folder {name}"
        raise ValueError(f"There is no model {name} on the Hub{nor}. If it is private, {_LOG_IN}.") from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{name} has no revision {revision}; --revision takes a branch, a tag or a commit.") from error
    except (errors.RevisionResolutionError, errors.OfflineModeIsEnabled, httpx.TransportError) as error:
        raise ValueError(f"{name} is neither a folder nor in the cache, and {_unreachable(error)}") from error


def check_places(out: Path | None, push: str | None, private: bool, token: str | None) -> None:
    """Check, before any work, that the model can be saved or uploaded."""
    if out is None and push is None:
        raise typer.BadParameter("Say where the model goes: --out FOLDER, --push ORG/NAME or both.")
    if private and push is None:
        raise typer.BadParameter("--private needs --push.")
    if push is not None:
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

        if "authorization" not in build_hf_headers(token=token):
            raise ValueError(f"An upload to {push} needs a token: {_LOG_IN}.")


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
            with _pushing(push):
                places["pushed"] = model.push_to_hub(push, token=token, private=private, local_model_path=folder)
    return places


def place_lines(places: dict[str, str]) -> list[str]:
    """Lines that say where the model was saved."""
    return [f"{what.capitalize()}: {where}" for what, where in places.items()]


@contextmanager
def _pushing(repository: str) -> Iterator[None]:
    """Turn errors of an upload into messages for the command line."""
    from huggingface_hub import errors
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    refusals = {
        401: f"The Hub rejected the token for {repository}: {_LOG_IN}.",
        403: f"The token has no write access to {repository}; choose a repository and a token that has.",
        409: f"{repository} already exists on the Hub; name a new repository.",
    }
    try:
        yield
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status not in refusals:
            raise
        raise ValueError(f"Nothing was uploaded. {refusals[status]}") from error
    except (errors.OfflineModeIsEnabled, httpx.TransportError) as error:
        raise ValueError(f"Nothing was uploaded: {_unreachable(error)}") from error


def _unreachable(error: Exception) -> str:
    from huggingface_hub import constants

    why = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else str(error.__cause__ or error)
    return f"the Hub at {constants.ENDPOINT} cannot be reached: {why}."
