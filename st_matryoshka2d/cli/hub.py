"""What lies between a command and the Hub: models that come from it, cuts that go to it, its errors in words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = ["fetching", "open_model", "pushing", "require_model", "require_token"]

_LOG_IN = "log in with `hf auth login`, or give --token"


def require_model(name: str, revision: str | None, token: str | None) -> None:
    """Refuse a model that is not there, before anything is imported that takes seconds."""
    folder = Path(name)
    if folder.exists():
        if not any((folder / file).is_file() for file in ("modules.json", "config.json")):
            raise ValueError(f"{name} is no folder of a model: it has neither modules.json nor config.json.")
        return
    from huggingface_hub import errors, resolve_revision

    cache = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    with fetching(name, revision):
        if "/" not in name:  # of sentence-transformers, or one of the oldest models, which have no organisation
            with suppress(errors.RepositoryNotFoundError, errors.RevisionResolutionError):
                resolve_revision(f"sentence-transformers/{name}", revision=revision, token=token, cache_dir=cache)
                return
        resolve_revision(name, revision=revision, token=token, cache_dir=cache)


def open_model(name: str, **kwargs: Any) -> SentenceTransformer:
    """Load a model whole."""
    # What the Hub does not have, or a Hub that is not in reach, shows at the first request and not after many.
    from sentence_transformers import SentenceTransformer

    from st_matryoshka2d.hub.checkpoint import opened, within_reach
    from st_matryoshka2d.loading import read_readouts

    with fetching(name, kwargs.get("revision")):
        checkpoint, kwargs = within_reach(*opened(name, kwargs), None)
        model = SentenceTransformer(checkpoint.name, **kwargs)
        read_readouts(model, checkpoint, model.config, getattr(model.config, "num_hidden_layers", 0))
        return model


@contextmanager
def fetching(name: str, revision: str | None) -> Iterator[None]:
    """Say in words of the command line what went wrong on the way from the Hub."""
    from huggingface_hub import errors
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    try:
        yield
    except errors.GatedRepoError as error:
        told = f"{name} is for those who accepted its conditions on the Hub: do that there, and {_LOG_IN}."
        raise ValueError(told) from error
    except errors.RepositoryNotFoundError as error:
        nor = "" if "/" in name else f", and no folder {name}"
        told = f"There is no model {name} on the Hub{nor}. If it is a private one that you may read, {_LOG_IN}."
        raise ValueError(told) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{name} has no revision {revision}; --revision takes a branch, a tag or a commit.") from error
    except (errors.RevisionResolutionError, errors.OfflineModeIsEnabled, httpx.TransportError) as error:
        raise ValueError(f"{name} is no folder and not in the cache, and {_not_in_reach(error)}") from error


def require_token(repository: str, token: str | None) -> None:
    """Refuse an upload without a token, which the Hub would refuse too, but after the work."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    if "authorization" not in build_hf_headers(token=token):
        raise ValueError(f"The Hub wants a token to upload to {repository}: {_LOG_IN}.")


@contextmanager
def pushing(repository: str) -> Iterator[None]:
    """Say in words of the command line why an upload was refused."""
    from huggingface_hub import errors
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    refusals = {
        401: f"The Hub does not know the token that came with {repository}: {_LOG_IN}.",
        403: f"The token may not write to {repository}; take a repository and a token with which you may.",
        409: f"{repository} is on the Hub already; name a new repository.",
    }
    try:
        yield
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status not in refusals:
            raise
        raise ValueError(f"Nothing was uploaded. {refusals[status]}") from error
    except (errors.OfflineModeIsEnabled, httpx.TransportError) as error:
        raise ValueError(f"Nothing was uploaded: {_not_in_reach(error)}") from error


def _not_in_reach(error: Exception) -> str:
    from huggingface_hub import constants

    why = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else str(error.__cause__ or error)
    return f"the Hub at {constants.ENDPOINT} is not in reach: {why}."
