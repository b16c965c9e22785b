"""Which files have the weights of a checkpoint, which of them may be read (no pickles unless asked for), and do they fit."""

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

from st_matryoshka2d.backbone import cut_config
from st_matryoshka2d.hub.checkpoint import INDEX, SUFFIXES, WEIGHTS, Checkpoint
from st_matryoshka2d.hub.header import header_of, parse_index, short, some

_BIN, _BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# How often a model may run the same block, as ALBERT does, whose 25 tensors serve 12 or 24 layers.
_REPEATS = 100
_LARGEST_BUFFERS = 2**30


def require_safetensors(checkpoint: Checkpoint, allow_bin: bool) -> None:
    """Refuse weights that would have to be unpickled, unless `allow_bin`."""
    for position, (_, folder) in enumerate(checkpoint.modules):
        files = [path for path in checkpoint.files if PurePosixPath(path).parent == PurePosixPath(folder)]
        if any(path.endswith(".safetensors") for path in files):
            continue
        pickles = [path for path in files if is_pickle(path)]
        needed = position == 0 and checkpoint.is_plain and not checkpoint.is_offline  # it may not be here yet
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
    """Whether a file is weights as older versions of transformers save them."""
    name = PurePosixPath(path).name
    return name.startswith("pytorch_model") and name.endswith((".bin", ".bin.index.json"))


def transformer_folders(checkpoint: Checkpoint) -> list[str]:
    """Where the Transformers of a pipeline are: one, or those of a Router; none of an adapter to another model."""
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
    """The file of weights that is read, or the index of several; None where there is none under a usual name."""
    paths = [join(folder, file) for file in (WEIGHTS, INDEX, _BIN, _BIN_INDEX)]
    return next((path for path in paths if path in checkpoint.files), None)


def check_weights(
    checkpoint: Checkpoint, configs: Mapping[str, PreTrainedConfig], num_layers: int | None, is_code: bool
) -> None:
    """Check names and shapes of weights, by the config of each folder, before a model is built from them."""
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
    """The shape of each tensor in a folder, whose files are fetched."""
    paths = {first}
    if first.endswith(".json"):
        ending = ".safetensors" if first.endswith(INDEX) else ".bin"
        shards = parse_index(checkpoint.fetch(first).read_bytes(), first, checkpoint.files_below(folder), ending)
        paths = {join(folder, shard) for shard in shards.values()}
    return {name: shape for path in sorted(paths) for name, shape in shapes_in(checkpoint.fetch(path)).items()}


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in a file of weights, whose header is sound, or which holds tensors and nothing else."""
    if path.suffix == ".safetensors":
        return {tensor.name: tensor.shape for tensor in header_of(path, str(path)).tensors}
    try:
        found = torch.load(path, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(path))
        return {name: tuple(tensor.shape) for name, tensor in found.items()}
    except Exception as error:
        raise ValueError(  # in our own words, because those of torch suggest to run the code
            f"{path} is broken, or holds more than tensors, which could run code when it is opened "
            f"({type(error).__name__}). Ask whoever made it for a safetensors file; do not open this one in another way."
        ) from None


def check_broken(root: Path) -> None:
    """Raise a ValueError that names the first file that is not what its ending says, if there is one."""
    for path in sorted([*root.glob("*"), *root.glob("*/*")]):
        if path.suffix == ".safetensors":
            shapes_in(path)
        elif path.suffix == ".json":
            try:
                json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path} is not usable JSON. {type(error).__name__}: {error}") from error


def depth_of(config: PreTrainedConfig, what: str) -> int:
    """How many layers a model has; refuse a config that does not say so."""
    depth = getattr(config, "num_hidden_layers", None)
    if depth is None:
        raise ValueError(f"{what}: {type(config).__name__} has no `num_hidden_layers`, so it has no depth to choose.")
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise ValueError(
            f"config.json of {what} must have a whole number of 1 or more as `num_hidden_layers`, found {short(depth)}."
        )
    return depth


def check_depth(config: PreTrainedConfig, num_tensors: int, what: str) -> None:
    """Refuse a depth that no checkpoint of so many tensors can have, before time and memory are spent on a model of it."""
    depth = depth_of(config, what)
    if depth > max(num_tensors, _REPEATS):
        raise ValueError(
            f"config.json of {what} says that the model has {depth} layers, but its weights are {num_tensors} tensors. "
            "Write the number of layers that the weights have into config.json, or download the checkpoint again."
        )


def check_shapes(shapes: Mapping[str, tuple[int, ...]], config: PreTrainedConfig, what: str) -> None:
    """Refuse shapes that are not the model's, or lack one of a block's; transformers says how weights may be named."""
    if getattr(config, "quantization_config", None) is not None:
        return  # packed numbers have other shapes, which only the library that packed them knows
    contradiction = f"The weights of {what} contradict its config.json"
    end = "Whoever made the checkpoint must save it again."
    try:
        model = blank_model(config)
        size = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
        if size > _LARGEST_BUFFERS:  # such as a table of positions, which no memory would hold
            raise ValueError(
                f"by it the model has tables of {size} bytes that are in no file; {_LARGEST_BUFFERS} are allowed."
            )
        if {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}.items() <= shapes.items():
            return  # nothing to ask
        found = _loading_info(model, shapes)
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{contradiction}: {short(str(error))}") from error
    if wrong := sorted(found["mismatched_keys"]):
        name, stored, expected = wrong[0]
        more = f" ({len(wrong) - 1} more differ)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{contradiction}: {short(name)} is {list(stored)}, and by the config {list(expected)}{more}. {end}"
        )
    absent: list[str] = []
    for path in block_lists(model):  # those that are not missing as a whole, as decoders of encoders are
        names = {name for name in model.state_dict() if name.startswith(f"{path}.")}
        absent += names & found["missing_keys"] if names - found["missing_keys"] else []
    if absent:
        raise ValueError(f"The weights of {what} lack {some(sorted(absent))}. {end}")


def blank_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A model without numbers, which takes no memory however large the config says it is."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModel.from_config(config)
    return model


def block_lists(model: PreTrainedModel) -> list[str]:
    """Dotted paths of the lists in a model that are as long as it is deep."""
    depth = model.config.num_hidden_layers
    return [path for path, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == depth]


def _loading_info(model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """What transformers misses or finds in another shape when it loads tensors of these shapes, without numbers."""
    with quiet_loading():  # what it would report is said in an error here
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
    """Silence transformers' report of how weights fit, unless it has one of these words."""

    def worth_telling(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return "LOAD REPORT" not in message or any(word in message for word in but)

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(worth_telling)
    try:
        yield
    finally:
        logger.removeFilter(worth_telling)
