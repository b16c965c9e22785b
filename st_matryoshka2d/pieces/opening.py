"""Which checkpoint a name means, at which commit, and whether its weights can be had."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import resolve_revision
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # exported on first use, which mypy does not see
from sentence_transformers.util import ORIGINAL_TRANSFORMER_MODELS

from st_matryoshka2d.pieces.checkpoint import INDEX, PLAIN_TRANSFORMERS, Checkpoint
from st_matryoshka2d.pieces.fetch import pieces_of
from st_matryoshka2d.pieces.safe_files import has_weights

__all__ = ["opened", "within_reach"]


def opened(name_or_path: str | os.PathLike[str], kwargs: dict[str, Any]) -> tuple[Checkpoint, dict[str, Any]]:
    """Find a checkpoint; of a repository on the Hub, the commit from which everything is fetched.

    Where the Hub is not in reach, the commit is the one that the cache knows.

    Args:
        name_or_path: A folder or a Hub id; sentence-transformers lets its own organisation be left out.
        kwargs: Keywords of `SentenceTransformer`.

    Returns:
        The checkpoint, and the keywords with that commit as `revision`.

    Raises:
        FileNotFoundError: A path to no folder.
        RepositoryNotFoundError: There is no such repository, or it may not be read. Also the Hub's other errors.
        RevisionResolutionError: The Hub is not in reach, and the repository is not in the cache.
    """
    name = _in_full(name_or_path)
    files = {key: kwargs[key] for key in ("token", "local_files_only") if kwargs.get(key) is not None}
    # sentence-transformers keeps its files there too
    if cache_folder := kwargs.get("cache_folder") or os.environ.get("SENTENCE_TRANSFORMERS_HOME"):
        files["cache_folder"] = os.fspath(cache_folder)
    if Path(name).exists():
        return Checkpoint(name, **files), kwargs
    revision = resolve_revision(
        name,
        revision=kwargs.get("revision"),
        cache_dir=files.get("cache_folder"),
        token=files.get("token"),
        local_files_only=files.get("local_files_only", False),
    )
    return Checkpoint(name, commit=revision.resolved, **files), {**kwargs, "revision": revision}


def within_reach(
    checkpoint: Checkpoint, kwargs: dict[str, Any], num_layers: int | None
) -> tuple[Checkpoint, dict[str, Any]]:
    """Find out whether the weights can be had, with one request, before others are made that are repeated for long.

    Args:
        checkpoint: A checkpoint, of which no piece of that many layers is here.
        kwargs: Keywords of `SentenceTransformer`.
        num_layers: Layers that are asked for; None for all.

    Returns:
        Both, with `local_files_only` where the Hub is not in reach and everything is in the cache.

    Raises:
        LocalEntryNotFoundError: The weights are not in the cache, and the Hub may not be asked or is not in reach.
    """
    if checkpoint.commit is None:
        return checkpoint, kwargs
    if checkpoint.is_offline:
        is_plain = checkpoint.modules[0][0] in PLAIN_TRANSFORMERS
        is_partly_here = not checkpoint.is_cached and checkpoint.within_transformer(INDEX) in checkpoint.files
        if is_plain and (is_partly_here or not has_weights(checkpoint.files, checkpoint.transformer)):
            raise LocalEntryNotFoundError(_not_here(checkpoint, num_layers, " while offline"))
        return checkpoint, kwargs
    try:
        checkpoint.files_on_hub  # noqa: B018  # kept for whoever needs them
    except (httpx.TransportError, HfHubHTTPError) as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
            raise
        if not checkpoint.is_cached:
            raise LocalEntryNotFoundError(_not_here(checkpoint, num_layers, f" ({error})")) from error
        return replace(checkpoint, local_files_only=True), {**kwargs, "local_files_only": True}
    return checkpoint, kwargs


def _in_full(name_or_path: str | os.PathLike[str]) -> str:
    name = os.fspath(name_or_path)
    if Path(name).exists():
        return name
    if name.startswith((".", "~")) or Path(name).is_absolute():
        raise FileNotFoundError(f"There is no folder {name}.")
    return name if "/" in name or name in ORIGINAL_TRANSFORMER_MODELS else f"sentence-transformers/{name}"


def _not_here(checkpoint: Checkpoint, num_layers: int | None, why: str) -> str:
    asked = "all layers" if num_layers is None else _layers(num_layers)
    pieces = " and ".join(f"a piece of {_layers(depth)}" for depth in pieces_of(checkpoint))
    return (
        f"The weights of {checkpoint.name} for {asked} must come from the Hub, which is not in reach{why}. "
        f"In the cache there is {pieces or 'nothing of them'}, at commit {str(checkpoint.commit)[:7]}. "
        f"Load {asked} once with the network, without HF_HUB_OFFLINE and local_files_only"
        + (", or ask for what is in the cache." if pieces else ".")
    )


def _layers(number: int) -> str:
    return f"{number} layer{'s' if number > 1 else ''}"
