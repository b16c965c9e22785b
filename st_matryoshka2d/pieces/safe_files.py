"""Which files of a checkpoint may be read: no pickles unless they were asked for, no code, nothing that is not needed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from st_matryoshka2d.pieces.checkpoint import INDEX, PLAIN_TRANSFORMERS, Checkpoint
from st_matryoshka2d.pieces.shards import require_inside
from st_matryoshka2d.readout_files import readout_file

__all__ = ["has_weights", "require_safetensors", "small_files"]

# What configurations, tokenizers and model cards are made of.
_SMALL = {".json", ".txt", ".model", ".jinja", ".md", ".tiktoken", ".spm", ".vocab", ".bpe", ".codes"}
_WEIGHTS = {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".gguf", ".pkl", ".npz"}


def require_safetensors(checkpoint: Checkpoint, allow_bin: bool) -> None:
    """Refuse weights that would have to be unpickled.

    Args:
        checkpoint: The checkpoint.
        allow_bin: Whether `pytorch_model.bin` may be read where there is no safetensors file.

    Raises:
        ValueError: A module has its weights in another format only.
    """
    for position, (kind, folder) in enumerate(checkpoint.modules):
        files = [path for path in checkpoint.files if _is_in(path, folder)]
        if any(path.endswith(".safetensors") for path in files):
            continue
        pickles = [path for path in files if _is_pickle(path)]
        needed = position == 0 and kind in PLAIN_TRANSFORMERS and not checkpoint.is_offline  # it may not be here yet
        if (pickles and allow_bin) or not (pickles or needed):
            continue
        found = [path for path in files if PurePosixPath(path).suffix in _WEIGHTS]
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
    """Everything that the pipeline needs but the Transformer's weights.

    Args:
        checkpoint: A checkpoint on the Hub.
        allow_bin: Whether a module without a safetensors file may bring a `pytorch_model.bin`.

    Raises:
        ValueError: One of them is not inside the repository.
    """
    heads = [folder for _, folder in checkpoint.modules[1:] if folder]
    bins = {folder for folder in heads if allow_bin and not _has_safetensors(checkpoint.files, folder)}

    def is_needed(path: str) -> bool:
        suffix = PurePosixPath(path).suffix
        folder = next((head for head in heads if _is_below(path, head)), None)
        if folder is not None:
            is_readout = PurePosixPath(path).match(readout_file("*"))  # of which only one is needed, and fetched later
            return suffix in _SMALL or (suffix == ".safetensors" and not is_readout) or (_is_pickle(path) and folder in bins)
        beside = _is_in(path, "") or _is_below(path, checkpoint.transformer) or path.startswith("additional_chat_templates/")
        return beside and suffix in _SMALL and path != checkpoint.within_transformer(INDEX)

    return [require_inside(path, f"The list of files of {checkpoint.name}") for path in checkpoint.files if is_needed(path)]


def has_weights(files: Iterable[str], folder: str) -> bool:
    """Whether a folder has weights in any format; an index of shards does not count.

    Args:
        files: Paths of all files.
        folder: The folder; empty for the root.
    """
    return any(_is_in(path, folder) and PurePosixPath(path).suffix in {".safetensors", *_WEIGHTS} for path in files)


def _is_in(path: str, folder: str) -> bool:
    return PurePosixPath(path).parent == PurePosixPath(folder)


def _is_below(path: str, folder: str) -> bool:
    return bool(folder) and PurePosixPath(folder) in PurePosixPath(path).parents


def _is_pickle(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.startswith("pytorch_model") and name.endswith((".bin", ".bin.index.json"))


def _has_safetensors(files: Iterable[str], folder: str) -> bool:
    return any(_is_in(path, folder) and path.endswith(".safetensors") for path in files)
