"""Turn the Hub's errors into messages for the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

LOG_IN = "log in with `hf auth login`, or give --token"


@contextmanager
def explained(reasons: Mapping[Any, str], otherwise: str) -> Iterator[None]:
    """Raise ValueErrors for errors of the Hub: the reason by class or HTTP status, or that it cannot be reached."""
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    try:
        yield
    except errors.HfHubHTTPError as error:
        if (reason := reasons.get(type(error)) or reasons.get(error.response.status_code)) is None:
            raise
        raise ValueError(reason) from error
    except (errors.RevisionResolutionError, errors.OfflineModeIsEnabled, httpx.TransportError) as error:
        why = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else str(error.__cause__ or error)
        raise ValueError(f"{otherwise} the Hub at {constants.ENDPOINT} cannot be reached: {why}.") from error
