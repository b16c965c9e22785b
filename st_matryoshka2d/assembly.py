"""From a checkpoint to a pipeline; broken or missing files are refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, PreTrainedConfig

from st_matryoshka2d.backbone import cut_config
from st_matryoshka2d.complete import check_complete
from st_matryoshka2d.hub.checkpoint import Checkpoint
from st_matryoshka2d.hub.shapes import check_depth, check_shapes
from st_matryoshka2d.hub.weights import check_broken, check_pickles, stored_shapes, transformer_folders, weights_in

__all__ = ["assembled", "check_weights", "read_config"]


def read_config(checkpoint: Checkpoint, folder: str, kwargs: Mapping[str, Any]) -> PreTrainedConfig:
    """Read the config.json of a Transformer."""
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            checkpoint.name,
            subfolder=folder,
            cache_dir=checkpoint.cache_folder,
            trust_remote_code=kwargs.get("trust_remote_code", False),
            revision=checkpoint.commit,
            token=checkpoint.token,
            local_files_only=checkpoint.local_files_only,
            **(kwargs.get("config_kwargs") or {}),
        )
    except StrictDataclassError as error:
        raise ValueError(f"config.json of {checkpoint.name} cannot be used. {' '.join(str(error).split())}") from error
    return config


def check_weights(
    checkpoint: Checkpoint, configs: Mapping[str, PreTrainedConfig], num_layers: int | None, is_code: bool
) -> None:
    """Check names and shapes of weights before a model is built from them."""
    for folder, config in configs.items():
        shapes = stored_shapes(checkpoint, folder)
        if shapes is not None:
            check_depth(config, len(shapes), checkpoint.name)
            if not is_code:
                check_shapes(
                    shapes,
                    cut_config(config, num_layers or config.num_hidden_layers),
                    f"{weights_in(checkpoint, folder)} of {checkpoint.name}",
                )
    check_pickles(checkpoint)


def assembled(checkpoint: Checkpoint, **kwargs: Any) -> SentenceTransformer:
    """Build the pipeline, and refuse one that lacks weights."""
    with _broken_files_named(checkpoint):
        model = SentenceTransformer(checkpoint.name, **kwargs)
    files = [path for folder in transformer_folders(checkpoint) if (path := weights_in(checkpoint, folder))]
    check_complete(model, f"{' and '.join(files) or 'The checkpoint'} of {checkpoint.name}")
    return model


@contextmanager
def _broken_files_named(checkpoint: Checkpoint) -> Iterator[None]:
    """Name the broken file, which a library's error seldom does."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeError):  # of a device, or of weights
            if str(error).startswith("Error(s) in loading state_dict"):
                raise ValueError(f"The weights of {checkpoint.name} do not fit its modules. {error}") from error
            raise
        try:
            check_broken(checkpoint.root)
        except ValueError as broken:
            raise broken from error
        raise
