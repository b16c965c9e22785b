"""A checkpoint that is a PEFT adapter: find the base model that its weights are added to."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from posixpath import join
from typing import Any

from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.hub.checkpoint import Checkpoint
from st_matryoshka2d.hub.reach import pinned, within_reach


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
