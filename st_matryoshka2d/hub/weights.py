"""Find the weights of a checkpoint, refuse pickles unless they are allowed, and check that the weights fit the config."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from posixpath import join
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from st_matryoshka2d.hub.checkpoint import INDEX, SUFFIXES, WEIGHTS, Checkpoint
from st_matryoshka2d.hub.header import header_of, parse_index, short, some
from st_matryoshka2d.kept_layers import cut_config

_BIN, _BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# Layers that any model may have, however few its tensors: ALBERT runs one block 12 or 24 times, with 25 tensors in all.
_REPEATS = 100
_LARGEST_BUFFERS = 2**30


def require_safetensors(checkpoint: Checkpoint, allow_bin: bool) -> None:
    """Refuse weights that would have to be unpickled, unless `allow_bin`."""
    for position, (_, folder) in enumerate(checkpoint.modules):
        files = [path for path in checkpoint.files if PurePosixPath(path).parent == PurePosixPath(folder)]
        if any(path.endswith(".safetensors") for path in files):
            continue
        pickles = [path for path in files if is_pickle(path)]
        needed = position == 0 and checkpoint.is_plain and not checkpoint.is_offline  # not downloaded yet
        if (pickles and allow_bin) or not (pickles or needed):
            continue
        found = [path for path in files if PurePosixPath(path).suffix in SUFFIXES]
        raise ValueError(
            f"{checkpoint.name} has no safetensors file in {folder or 'its root'}, found {found or 'no weights at all'}. "
            + (
                "Reading a .bin file means unpickling it. allow_bin=True does that with weights_only=True, which builds "
                "tensors and nothing else; or convert the file: load it somewhere safe and save it with save_pretrained."
                if pickles
                else "Save the model with save_pretrained."
            )
        )


def is_pickle(path: str) -> bool:
    """Whether a file has pickled weights, as older versions of transformers save them."""
    name = PurePosixPath(path).name
    return name.startswith("pytorch_model") and name.endswith((".bin", ".bin.index.json"))


def transformer_folders(checkpoint: Checkpoint) -> list[str]:
    """Folders of the Transformers of a pipeline, several with a Router; without adapters."""
    folders = [checkpoint.transformer]
    if not checkpoint.is_plain:
        configs = [PurePosixPath(path) for path in checkpoint.files if PurePosixPath(path).name == "config.json"]
        folders = ["" if path.parent.name == "" else path.parent.as_posix() for path in configs]
        folders = [folder for folder in folders if _is_transformer(checkpoint, folder)]
    return [folder for folder in folders if join(folder, "adapter_config.json") not in checkpoint.files]


def _is_transformer(checkpoint: Checkpoint, folder: str) -> bool:
    if weights_in(checkpoint, folder) is None:
        return False
    try:
        config = json.loads(checkpoint.fetch(join(folder, "config.json")).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False  # reported when it is read as a config
    return isinstance(config, dict) and "model_type" in config


def weights_in(checkpoint: Checkpoint, folder: str) -> str | None:
    """Path of the weights that will be read, or of the index of shards; None if no file has a usual name."""
    paths = [join(folder, file) for file in (WEIGHTS, INDEX, _BIN, _BIN_INDEX)]
    return next((path for path in paths if path in checkpoint.files), None)


def check_weights(
    checkpoint: Checkpoint, configs: Mapping[str, PreTrainedConfig], num_layers: int | None, is_code: bool
) -> None:
    """Check names and shapes of weights against the config of each folder, before a model is built."""
    for folder, config in configs.items():
        if (first := weights_in(checkpoint, folder)) is None:
            continue
        shapes = _stored_shapes(checkpoint, folder, first)
        check_depth(config, len(shapes), checkpoint.name)
        if not is_code:
            check_shapes(shapes, cut_config(config, num_layers or config.num_hidden_layers), f"{first} of {checkpoint.name}")
    for _, folder in checkpoint.modules[1:]:
        if weights_in(checkpoint, folder) == (path := join(folder, _BIN)):
            shapes_in(checkpoint.fetch(path))


def _stored_shapes(checkpoint: Checkpoint, folder: str, first: str) -> dict[str, tuple[int, ...]]:
    """Download the weights of a folder if necessary, and read the shape of each tensor."""
    paths = {first}
    if first.endswith(".json"):
        ending = ".safetensors" if first.endswith(INDEX) else ".bin"
        shards = parse_index(checkpoint.fetch(first).read_bytes(), first, checkpoint.files_below(folder), ending)
        paths = {join(folder, shard) for shard in shards.values()}
    return {name: shape for path in sorted(paths) for name, shape in shapes_in(checkpoint.fetch(path)).items()}


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the shape of each tensor in a file of weights; refuse a broken file, and a pickle with more than tensors."""
    if path.suffix == ".safetensors":
        return {tensor.name: tensor.shape for tensor in header_of(path, str(path)).tensors}
    try:
        found = torch.load(path, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(path))
        return {name: tuple(tensor.shape) for name, tensor in found.items()}
    except Exception as error:
        raise ValueError(  # hides torch's message, which suggests running the code
            f"{path} is broken, or holds more than tensors and could run code when opened ({type(error).__name__}). "
            "Ask its author for a safetensors file; do not open this one in another way."
        ) from None


def check_broken(root: Path) -> None:
    """Raise a ValueError that names the first broken safetensors or JSON file, if any."""
    for path in sorted([*root.glob("*"), *root.glob("*/*")]):
        if path.suffix == ".safetensors":
            shapes_in(path)
        elif path.suffix == ".json":
            try:
                json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path} is not usable JSON. {type(error).__name__}: {error}") from error


def depth_of(config: PreTrainedConfig, what: str) -> int:
    """Return the number of layers; refuse a config without a usable one."""
    depth = getattr(config, "num_hidden_layers", None)
    if depth is None:
        raise ValueError(f"{what}: {type(config).__name__} has no `num_hidden_layers`, so it cannot be cut in depth.")
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise ValueError(
            f"config.json of {what} must have a whole number of 1 or more as `num_hidden_layers`, found {short(depth)}."
        )
    return depth


def check_depth(config: PreTrainedConfig, num_tensors: int, what: str) -> None:
    """Refuse a depth that is impossible with so few tensors, before a model of it takes time and memory."""
    depth = depth_of(config, what)
    if depth > max(num_tensors, _REPEATS):
        raise ValueError(
            f"config.json of {what} says that the model has {depth} layers, but its weights are {num_tensors} tensors. "
            "Write the number of layers that the weights have into config.json, or download the checkpoint again."
        )


def check_shapes(shapes: Mapping[str, tuple[int, ...]], config: PreTrainedConfig, what: str) -> None:
    """Refuse wrong shapes, and blocks with missing tensors; transformers maps the names of the weights."""
    if getattr(config, "quantization_config", None) is not None:
        return  # only the quantization library knows the shapes of packed weights
    contradiction = f"The weights of {what} contradict its config.json"
    end = "Ask the author of the checkpoint to save it again."
    try:
        model = blank_model(config)
        size = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
        if size > _LARGEST_BUFFERS:  # such as a huge table of positions
            raise ValueError(f"it needs tables of {size} bytes that are in no file; {_LARGEST_BUFFERS} are allowed.")
        if {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}.items() <= shapes.items():
            return  # all names and shapes fit
        found = _loading_info(model, shapes)
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{contradiction}: {short(str(error))}") from error
    if wrong := sorted(found["mismatched_keys"]):
        name, stored, expected = wrong[0]
        more = f" ({len(wrong) - 1} more differ)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{contradiction}: {short(name)} is {list(stored)}, but the config says {list(expected)}{more}. {end}"
        )
    absent: list[str] = []
    for path in block_lists(model):  # a whole list may be missing: the decoder of an encoder
        names = {name for name in model.state_dict() if name.startswith(f"{path}.")}
        absent += names & found["missing_keys"] if names - found["missing_keys"] else []
    if absent:
        raise ValueError(f"The weights of {what} lack {some(sorted(absent))}. {end}")


def blank_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model on the meta device, which takes no memory whatever the config says."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModel.from_config(config)
    return model


def block_lists(model: PreTrainedModel) -> list[str]:
    """Dotted paths of the `ModuleList`s that are as long as the model is deep."""
    depth = model.config.num_hidden_layers
    return [path for path, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == depth]


def _loading_info(model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Let transformers load empty tensors of these shapes, and return what is missing or has another shape."""
    with quiet_loading():  # the caller raises an error instead
        loaded: Any = type(model).from_pretrained(
            None,
            config=model.config,
            state_dict={name: torch.empty(shape, device="meta") for name, shape in shapes.items()},
            device_map="meta",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    return dict(loaded[1])


@contextmanager
def quiet_loading(*but: str) -> Iterator[None]:
    """Silence transformers' load report, unless it contains one of these words."""

    def is_wanted(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return "LOAD REPORT" not in message or any(word in message for word in but)

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(is_wanted)
