"""Which files have the weights of a checkpoint, and which may be read: no pickles unless asked for, no code."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from posixpath import join

from st_matryoshka2d.hub.checkpoint import INDEX, SUFFIXES, WEIGHTS, Checkpoint
from st_matryoshka2d.hub.header import header_of, parse_index
from st_matryoshka2d.hub.safety import pickled_shapes, require_inside
from st_matryoshka2d.readout_files import readout_file

__all__ = [
    "check_broken",
    "check_pickles",
    "require_safetensors",
    "small_files",
    "stored_shapes",
    "transformer_folders",
    "weights_in",
]

_BIN, _BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# What configurations, tokenizers and model cards are made of.
_SMALL = {".json", ".txt", ".model", ".jinja", ".md", ".tiktoken", ".spm", ".vocab", ".bpe", ".codes"}


def require_safetensors(checkpoint: Checkpoint, allow_bin: bool) -> None:
    """Refuse weights that would have to be unpickled, unless `allow_bin`."""
    for position, (_, folder) in enumerate(checkpoint.modules):
        files = [path for path in checkpoint.files if _is_in(path, folder)]
        if any(path.endswith(".safetensors") for path in files):
            continue
        pickles = [path for path in files if _is_pickle(path)]
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


def small_files(checkpoint: Checkpoint, allow_bin: bool) -> list[str]:
    """Paths of everything that the pipeline needs but the Transformer's weights."""
    heads = [folder for _, folder in checkpoint.modules[1:] if folder]
    safe = {str(PurePosixPath(path).parent) for path in checkpoint.files if path.endswith(".safetensors")}

    def is_needed(path: str) -> bool:
        suffix, parents = PurePosixPath(path).suffix, list(map(str, PurePosixPath(path).parents))
        if head := next((head for head in heads if head in parents), None):
            is_readout = PurePosixPath(path).match(readout_file("*"))  # of which only one is needed, and fetched later
            is_bin = allow_bin and head not in safe and _is_pickle(path)
            return suffix in _SMALL or (suffix == ".safetensors" and not is_readout) or is_bin
        beside = _is_in(path, "") or checkpoint.transformer in parents or path.startswith("additional_chat_templates/")
        return beside and suffix in _SMALL and path != checkpoint.within_transformer(INDEX)

    return [require_inside(path, f"The list of files of {checkpoint.name}") for path in checkpoint.files if is_needed(path)]


def transformer_folders(checkpoint: Checkpoint) -> list[str]:
    """Where the Transformers of a pipeline are: one, or those of a Router; none of an adapter to another model."""
    folders = [checkpoint.transformer]
    if not checkpoint.is_plain:
        configs = [PurePosixPath(path) for path in checkpoint.files if PurePosixPath(path).name == "config.json"]
        folders = ["" if path.parent.name == "" else path.parent.as_posix() for path in configs]
        folders = [folder for folder in folders if _is_transformer(checkpoint, folder)]
    return [folder for folder in folders if join(folder, "adapter_config.json") not in checkpoint.files]


def weights_in(checkpoint: Checkpoint, folder: str) -> str | None:
    """The file of weights that is read, or the index of several; None where there is none under a usual name."""
    paths = [join(folder, file) for file in (WEIGHTS, INDEX, _BIN, _BIN_INDEX)]
    return next((path for path in paths if path in checkpoint.files), None)


def stored_shapes(checkpoint: Checkpoint, folder: str) -> dict[str, tuple[int, ...]] | None:
    """The shape of each tensor in a folder, whose files are fetched; None where there are no weights under a usual name."""
    first = weights_in(checkpoint, folder)
    if first is None:
        return None
    paths = {first}
    if first.endswith(".json"):
        ending = ".safetensors" if first.endswith(INDEX) else ".bin"
        shards = parse_index(checkpoint.fetch(first).read_bytes(), first, checkpoint.files_below(folder), ending)
        paths = {join(folder, shard) for shard in shards.values()}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(paths):
        file = checkpoint.fetch(path)
        if path.endswith(".bin"):
            shapes |= pickled_shapes(file)
        else:
            shapes |= {tensor.name: tensor.shape for tensor in header_of(file, str(file)).tensors}
    return shapes


def check_pickles(checkpoint: Checkpoint) -> None:
    """Refuse a `pytorch_model.bin` of a module after the Transformer that is broken or more than tensors."""
    for _, folder in checkpoint.modules[1:]:
        if weights_in(checkpoint, folder) == join(folder, _BIN):
            pickled_shapes(checkpoint.fetch(join(folder, _BIN)))


def check_broken(root: Path) -> None:
    """Raise a ValueError that names the first file that is not what its ending says, if there is one."""
    for path in sorted([*root.glob("*"), *root.glob("*/*")]):
        if path.suffix == ".safetensors":
            header_of(path, str(path))
        elif path.suffix == ".json":
            try:
                json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path} is not usable JSON. {type(error).__name__}: {error}") from error


def _is_in(path: str, folder: str) -> bool:
    return PurePosixPath(path).parent == PurePosixPath(folder)


def _is_pickle(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.startswith("pytorch_model") and name.endswith((".bin", ".bin.index.json"))


def _is_transformer(checkpoint: Checkpoint, folder: str) -> bool:
    if weights_in(checkpoint, folder) is None:
        return False
    try:
        config = json.loads(checkpoint.fetch(join(folder, "config.json")).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False  # reported when it is read as a config
    return isinstance(config, dict) and "model_type" in config
