"""Check the weight files of a checkpoint before a model is built: their format, and their shapes against the config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from posixpath import join
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.hub.checkpoint import BIN, SUFFIXES, Checkpoint, is_pickle
from st_matryoshka2d.hub.reach import opened, within_reach
from st_matryoshka2d.hub.weights_fit import check_shapes, depth_of, shapes_in
from st_matryoshka2d.model.cut_config import Cut
from st_matryoshka2d.model.readout_files import readout_file

# Arguments of `from_pretrained` that take the weights from elsewhere than the checkpoint's own
# safetensors files.
_OTHER_WEIGHTS = {"gguf_file", "state_dict", "subfolder", "variant"}


def brings_other_weights(kwargs: Mapping[str, Any]) -> bool:
    """Whether the arguments of `SentenceTransformer` take the weights from elsewhere."""
    return bool(_OTHER_WEIGHTS & set(kwargs.get("model_kwargs") or {}))


def without_pickles(checkpoint: Checkpoint, allow_bin: bool, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Refuse pickles, unless `allow_bin`; add an argument with which transformers unpickles nothing, or only tensors."""
    for position, (_, folder) in enumerate(checkpoint.modules):
        # not downloaded yet
        needed = position == 0 and checkpoint.is_plain and not checkpoint.is_offline
        _require_safetensors(checkpoint, folder, needed, allow_bin)
    safely = {"weights_only": True} if allow_bin else {"use_safetensors": True}
    return {**kwargs, "model_kwargs": {**(kwargs.get("model_kwargs") or {}), **safely}}


def _require_safetensors(checkpoint: Checkpoint, folder: str, needed: bool, allow_bin: bool) -> None:
    """Refuse a folder whose weights are pickles, unless `allow_bin`, or one without the weights that are needed."""
    paths = (PurePosixPath(path) for path in checkpoint.files)
    # Readouts are beside the weights, not in place of them.
    files = [str(path) for path in paths if path.parent == PurePosixPath(folder) and not path.match(readout_file("*"))]
    pickles = [path for path in files if is_pickle(path)]
    if any(path.endswith(".safetensors") for path in files) or (pickles and allow_bin) or not (pickles or needed):
        return
    unusable = [path for path in files if PurePosixPath(path).suffix in SUFFIXES]
    raise UsageError(
        f"{checkpoint.name} has no safetensors file in {folder or 'its root'}, found {unusable or 'no weights at all'}. "
        + (
            "Reading a .bin file means unpickling it. allow_bin=True does that with weights_only=True, which builds "
            "tensors and nothing else; or convert the file: load it somewhere safe and save it with save_pretrained."
            if pickles
            else "Save the model with save_pretrained."
        )
    )


def check_adapters(checkpoint: Checkpoint, allow_bin: bool, kwargs: dict[str, Any]) -> None:
    """Refuse PEFT adapters that are pickled or lie on a pickle, and a kind that is not read back as it was saved."""
    for folder in checkpoint.adapter_folders:
        if join(folder, ADAPTER_SAFE_WEIGHTS_NAME) not in checkpoint.files:
            raise UsageError(
                f"{checkpoint.name} has a PEFT adapter without {ADAPTER_SAFE_WEIGHTS_NAME} in {folder or 'its root'}. A "
                "pickled adapter is not read, not even with allow_bin=True: load it somewhere safe and save it with "
                "save_pretrained."
            )
        config = checkpoint.read(join(folder, ADAPTER_CONFIG_NAME)) or {}
        if config.get("use_dora"):
            raise UsageError(
                f"{checkpoint.name} is a DoRA adapter, whose magnitudes transformers does not read back as they were saved. "
                "Merge it where it was trained: truncate(model, the full size).save_pretrained(folder), and load that."
            )
        if not (name := config.get("base_model_name_or_path")):
            raise UsageError(
                f"{ADAPTER_CONFIG_NAME} of {checkpoint.name} must name the adapter's base model as "
                f"`base_model_name_or_path`, found {name!r}. Write the base model's folder or Hub id into it."
            )
        try:
            base, _ = within_reach(*opened(name, {key: value for key, value in kwargs.items() if key != "revision"}), None)
        except Exception as error:
            error.add_note(f"{name} is the base model of the PEFT adapter {checkpoint.name}.")
            raise
        _require_safetensors(base, "", not base.is_offline, allow_bin)


def read_config(checkpoint: Checkpoint, folder: str, kwargs: Mapping[str, Any]) -> PreTrainedConfig:
    """Read the config.json of a Transformer."""
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            checkpoint.name,
            subfolder=folder,
            trust_remote_code=kwargs.get("trust_remote_code", False),
            local_files_only=checkpoint.local_files_only,
            **checkpoint.access,
            **(kwargs.get("config_kwargs") or {}),
        )
    except StrictDataclassError as error:
        raise UsageError(f"config.json of {checkpoint.name} cannot be used. {' '.join(str(error).split())}") from error
    return config


def check_weights(
    checkpoint: Checkpoint, configs: Mapping[str, PreTrainedConfig], kwargs: Mapping[str, Any], cut: Cut | None = None
) -> None:
    """Check weights against the config of their folder, or those of a cut alone, before a model is built from them."""
    if brings_other_weights(kwargs):
        return
    for folder, config in configs.items():
        if not (files := checkpoint.shards_in(folder)):
            continue
        shapes = {name: shape for path in files for name, shape in shapes_in(checkpoint.fetch(path)).items()}
        depth_of(config, checkpoint.name, len(shapes))
        if not kwargs.get("trust_remote_code"):
            check_shapes(shapes, cut.config if cut else config, f"{checkpoint.weights_in(folder)} of {checkpoint.name}")
    for _, folder in checkpoint.modules[1:]:
        if checkpoint.weights_in(folder) == (path := join(folder, BIN)):
            shapes_in(checkpoint.fetch(path))


def check_files(checkpoint: Checkpoint) -> None:
    """Raise a ValueError that names the first broken safetensors or JSON file, if any."""
    for path in sorted([*checkpoint.root.glob("*"), *checkpoint.root.glob("*/*")]):
        if path.suffix == ".safetensors":
            shapes_in(path)
        elif path.suffix == ".json":
            try:
                json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{path} is not usable JSON. {type(error).__name__}: {error}") from error
