"""Find a checkpoint, on the Hub or in a folder, and the base model of a PEFT adapter."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from posixpath import join
from typing import Any

from huggingface_hub import resolve_revision
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # exported on first use, which mypy does not see
from sentence_transformers.util import ORIGINAL_TRANSFORMER_MODELS
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.hub.checkpoint import INDEX, SUFFIXES, Checkpoint


def opened(name_or_path: str | os.PathLike[str], kwargs: dict[str, Any]) -> tuple[Checkpoint, dict[str, Any]]:
    """Find a checkpoint from the arguments of `SentenceTransformer`, and pin its commit in them as `revision`."""
    name = os.fspath(name_or_path)
    is_here = Path(name).exists()
    if not is_here and (name.startswith((".", "~")) or Path(name).is_absolute()):
        raise FileNotFoundError(f"There is no folder {name}.")
    if not is_here and "/" not in name and name not in ORIGINAL_TRANSFORMER_MODELS:
        name = f"sentence-transformers/{name}"
    return (Checkpoint(name), kwargs) if is_here else pinned(name, kwargs)


def pinned(name: str, kwargs: dict[str, Any]) -> tuple[Checkpoint, dict[str, Any]]:
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


def base_of(checkpoint: Checkpoint, folder: str, kwargs: dict[str, Any]) -> tuple[Checkpoint, dict[str, Any]]:
    """Find the base model of the adapter in a folder, and the arguments of `SentenceTransformer` that select it."""
    if find_spec("peft") is None:
        raise ImportError(f"{checkpoint.name} is a PEFT adapter. To load it, install peft: `pip install peft`.")
    if join(folder, ADAPTER_SAFE_WEIGHTS_NAME) not in checkpoint.files:
        raise UsageError(
            f"{checkpoint.name} has a PEFT adapter without {ADAPTER_SAFE_WEIGHTS_NAME} in {folder or 'its root'}. A pickled "
            "adapter is not read, not even with allow_bin=True: load it somewhere safe and save it with save_pretrained."
        )
    name = _base_name(checkpoint, folder)
    # that of the adapter
    kwargs = {key: value for key, value in kwargs.items() if key != "revision"}
    if Path(name).exists():
        return Checkpoint(name), kwargs
    if name.startswith((".", "~")) or Path(name).is_absolute():
        raise FileNotFoundError(
            f"{checkpoint.name} is a PEFT adapter of {name}, and there is no such folder. Write the folder or Hub id of "
            f"the base model as `base_model_name_or_path` into its {ADAPTER_CONFIG_NAME}."
        )
    try:
        return within_reach(*pinned(name, kwargs), None)
    except Exception as error:
        error.add_note(f"{name} is the base model of the PEFT adapter {checkpoint.name}.")
        raise


def _base_name(checkpoint: Checkpoint, folder: str) -> str:
    from peft import PeftConfig

    path = checkpoint.fetch(join(folder, ADAPTER_CONFIG_NAME))
    try:
        config: Any = PeftConfig.from_pretrained(str(path.parent))
    except Exception as error:
        what = f"{ADAPTER_CONFIG_NAME} of {checkpoint.name} cannot be used"
        raise UsageError(f"{what}. {type(error).__name__}: {error}") from error
    if getattr(config, "use_dora", False):
        raise UsageError(
            f"{checkpoint.name} is a DoRA adapter, whose magnitudes transformers does not read back as they were saved. "
            "Merge it where it was trained: truncate(model, the full size).save_pretrained(folder), and load that."
        )
    if config.is_prompt_learning:
        raise UsageError(
            f"{checkpoint.name} is a PEFT adapter of type {config.peft_type.value}, which adds virtual tokens. Only "
            "adapters inside the blocks can be loaded, such as LoRA."
        )
    if not isinstance(name := config.base_model_name_or_path, str) or not name:
        raise UsageError(
            f"{ADAPTER_CONFIG_NAME} of {checkpoint.name} must name the adapter's base model as `base_model_name_or_path`, "
            f"found {name!r}. Write the base model's folder or Hub id into it."
        )
    return name
