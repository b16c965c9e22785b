"""Find a checkpoint, on the Hub or in a folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import resolve_revision
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # exported on first use, which mypy does not see
from sentence_transformers.util import ORIGINAL_TRANSFORMER_MODELS

from st_matryoshka2d.hub.checkpoint import INDEX, SUFFIXES, Checkpoint


def opened(name_or_path: str | os.PathLike[str], kwargs: dict[str, Any]) -> tuple[Checkpoint, dict[str, Any]]:
    """Find a checkpoint from the arguments of `SentenceTransformer`, and pin its commit in them as `revision`."""
    name = os.fspath(name_or_path)
    is_here = Path(name).exists()
    if not is_here and (name.startswith((".", "~")) or Path(name).is_absolute()):
        raise FileNotFoundError(f"There is no folder {name}.")
    if not is_here and "/" not in name and name not in ORIGINAL_TRANSFORMER_MODELS:
        name = f"sentence-transformers/{name}"
    return (Checkpoint(name), kwargs) if is_here else _pinned(name, kwargs)


def _pinned(name: str, kwargs: dict[str, Any]) -> tuple[Checkpoint, dict[str, Any]]:
    """Find a repository at the commit that the arguments of `SentenceTransformer` select, and pin it in them."""
    # sentence-transformers caches its files there too
    cache_folder = kwargs.get("cache_folder") or os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    checkpoint = Checkpoint(
        name,
        token=kwargs.get("token"),
        cache_folder=os.fspath(cache_folder) if cache_folder else None,
        local_files_only=bool(kwargs.get("local_files_only")),
    )
    access = {**checkpoint.access, "revision": kwargs.get("revision")}
    revision = resolve_revision(name, local_files_only=checkpoint.local_files_only, **access)
    return replace(checkpoint, commit=revision.resolved), {**kwargs, "revision": revision}


def within_reach(
    checkpoint: Checkpoint, kwargs: dict[str, Any], num_layers: int | None
) -> tuple[Checkpoint, dict[str, Any]]:
    """Check with one request that the Hub can be reached, as later ones are retried for long; if not, use the cache."""
    if checkpoint.commit is None:
        return checkpoint, kwargs
    if checkpoint.is_offline:
        folder = checkpoint.root / checkpoint.transformer
        is_partly_here = not checkpoint.is_cached and (folder / INDEX).is_file()
        if checkpoint.is_plain and (is_partly_here or not any(path.suffix in SUFFIXES for path in folder.glob("*"))):
            raise LocalEntryNotFoundError(_not_here(checkpoint, num_layers, " while offline"))
        return checkpoint, kwargs
    try:
        checkpoint.files_on_hub  # noqa: B018  # cached for later
    except (httpx.TransportError, HfHubHTTPError) as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
            raise
        if not checkpoint.is_cached:
            raise LocalEntryNotFoundError(_not_here(checkpoint, num_layers, f" ({error})")) from error
        return replace(checkpoint, local_files_only=True), {**kwargs, "local_files_only": True}
    return checkpoint, kwargs


def _not_here(checkpoint: Checkpoint, num_layers: int | None, why: str) -> str:
    folders = checkpoint.piece_folder([0]).parent.glob("[1-9]*-layers*")
    depths = sorted({int(folder.name.partition("-")[0]) for folder in folders})
    names = {None: "all layers", 1: "1 layer"}
    wanted = names.get(num_layers, f"{num_layers} layers")
    pieces = " and ".join(f"a piece of {names.get(depth, f'{depth} layers')}" for depth in depths)
    return (
        f"The weights of {checkpoint.name} for {wanted} must come from the Hub, which cannot be reached{why}. "
        f"The cache has {pieces or 'none of them'}, at commit {str(checkpoint.commit)[:7]}. "
        f"Load {wanted} once while online, without HF_HUB_OFFLINE and local_files_only"
        + (", or load what is in the cache." if pieces else ".")
    )
