"""Commands and the Hub: open models, push cuts, explain the Hub's errors."""

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
    """Refuse a model that does not exist before any slow import."""
    folder = Path(name)
    if folder.exists():
        if not any((folder / file).is_file() for file in ("modules.json", "config.json")):
            raise ValueError(f"{name} is not a model folder: it has neither modules.json nor config.json.")
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
    """Load the whole model."""
    # A missing model, or a Hub that cannot be reached, shows at the first request and not after many.
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
    """Turn errors of a download into messages for the command line."""
    from huggingface_hub import errors
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    try:
        yield
    except errors.GatedRepoError as error:
        told = f"{name} is gated: accept its conditions on the Hub, and {_LOG_IN}."
        raise ValueError(told) from error
    except errors.RepositoryNotFoundError as error:
        nor = "" if "/" in name else f", and no folder {name}"
        told = f"There is no model {name} on the Hub{nor}. If it is a private one that you may read, {_LOG_IN}."
        raise ValueError(told) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{name} has no revision {revision}; --revision takes a branch, a tag or a commit.") from error
    except (errors.RevisionResolutionError, errors.OfflineModeIsEnabled, httpx.TransportError) as error:
        raise ValueError(f"{name} is neither a folder nor in the cache, and {_not_in_reach(error)}") from error


def require_token(repository: str, token: str | None) -> None:
    """Refuse an upload without a token now; the Hub would refuse it after the work."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    if "authorization" not in build_hf_headers(token=token):
        raise ValueError(f"An upload to {repository} needs a token: {_LOG_IN}.")


@contextmanager
def pushing(repository: str) -> Iterator[None]:
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
        raise ValueError(f"Nothing was uploaded: {_not_in_reach(error)}") from error


def _not_in_reach(error: Exception) -> str:
    from huggingface_hub import constants

    why = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else str(error.__cause__ or error)
    return f"the Hub at {constants.ENDPOINT} cannot be reached: {why}."
