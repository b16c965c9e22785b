"""Write, read and check the files of readouts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from st_matryoshka2d.files.atomic import replace_file

# N of their model, and the maps by depth.
StoredReadouts: TypeAlias = tuple[int, dict[int, nn.Linear]]


def readout_file(num_layers: int | str) -> str:
    """Return the file name for a depth; the content has the form of a `Dense`'s `model.safetensors`."""
    return f"readout-{num_layers}L.safetensors"


def write_readouts(folder: Path, whole: nn.Linear, num_layers: int, by_depth: Mapping[int, nn.Linear]) -> None:
    """Write a file for each depth, with a fingerprint of the map of the full depth; remove files of other depths."""
    for of_another in set(folder.glob(readout_file("*"))) - {folder / readout_file(depth) for depth in by_depth}:
        of_another.unlink()
    about = {"num_layers": str(num_layers), "of": _fingerprint(whole)}
    for depth, linear in by_depth.items():
        tensors = {f"linear.{name}": tensor.contiguous() for name, tensor in linear.state_dict().items()}
        replace_file(folder / readout_file(depth), partial(save_file, tensors, metadata={**about, "depth": str(depth)}))


def read_readouts(files: Iterable[Path], whole: nn.Linear) -> StoredReadouts:
    """Read the files of one folder; refuse the readout of another model, depth or width."""
    fingerprint = _fingerprint(whole)
    by_depth: dict[int, nn.Linear] = {}
    facts: dict[str, str] = {}
    for file in sorted(files):
        try:
            with safe_open(file, framework="pt") as opened:
                facts = opened.metadata() or {}
                linear = linear_of(opened.get_tensor("linear.weight"), opened.get_tensor("linear.bias"))
        except (SafetensorError, OSError, IndexError) as error:
            raise ValueError(f"{file} cannot be read: {error}. Download or save the aligned model again.") from error
        if facts.get("of") != fingerprint:
            raise ValueError(
                f"{file} belongs to other weights than the model.safetensors in the same folder, so its embeddings would "
                "not be in the space of the whole model. Save the aligned model again, or align it again."
            )
        if file.name != readout_file(facts["depth"]):
            raise ValueError(
                f"{file} holds the readout of {facts['depth']} layers. Download or save the aligned model again."
            )
        if linear.weight.shape != whole.weight.shape:
            found, expected = (" x ".join(map(str, each.weight.shape)) for each in (linear, whole))
            raise ValueError(f"{file} is {found}, but must be {expected}. Download or save the aligned model again.")
        by_depth[int(facts["depth"])] = linear
    return int(facts["num_layers"]), by_depth


def _fingerprint(linear: nn.Linear) -> str:
    """Compute a digest of the map of the full depth, which identifies the model of a readout."""
    weight, bias = linear.weight.detach(), linear.bias.detach()
    values = torch.cat([weight.flatten(), bias]).float().cpu().contiguous()
    return hashlib.sha256(str(tuple(weight.shape)).encode() + values.numpy().tobytes()).hexdigest()


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Make a `Linear` of given values."""
    with torch.device("meta"):  # the initial values are not used
        linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight, linear.bias = nn.Parameter(weight.contiguous()), nn.Parameter(bias.contiguous())
    return linear
