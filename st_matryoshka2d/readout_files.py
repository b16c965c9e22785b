"""The files of readouts: what is written beside the whole model's map, and how it is read and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

__all__ = ["StoredReadouts", "linear_of", "read_readouts", "readout_file", "write_readouts"]


def readout_file(num_layers: int | str) -> str:
    """What the file of one depth is called: it holds what the `model.safetensors` of a cut's `Dense` holds."""
    return f"readout-{num_layers}L.safetensors"


@dataclass(frozen=True)
class StoredReadouts:
    """What the files of one folder hold.

    Attributes:
        num_layers: N of the model that they are of.
        by_depth: The map of each depth that was read.
    """

    num_layers: int
    by_depth: Mapping[int, nn.Linear]


def write_readouts(folder: Path, whole: nn.Linear, num_layers: int, by_depth: Mapping[int, nn.Linear]) -> None:
    """Write a file for each depth beside the whole model's map."""
    of = {"num_layers": str(num_layers), "of": _fingerprint(whole)}
    for depth, linear in by_depth.items():
        tensors = {f"linear.{name}": tensor.contiguous() for name, tensor in linear.state_dict().items()}
        save_file(tensors, folder / readout_file(depth), {**of, "depth": str(depth)})


def read_readouts(files: Iterable[Path], whole: nn.Linear) -> StoredReadouts:
    """Read the files of one folder."""
    by_depth: dict[int, nn.Linear] = {}
    facts: dict[str, str] = {}
    for file in sorted(files):
        try:
            with safe_open(file, framework="pt") as opened:
                facts = opened.metadata() or {}
                linear = linear_of(opened.get_tensor("linear.weight"), opened.get_tensor("linear.bias"))
        except (SafetensorError, OSError, IndexError) as error:
            raise ValueError(f"{file} cannot be read: {error}. Download or save the aligned model again.") from error
        _check_facts(file, facts, linear, whole)
        by_depth[int(facts["depth"])] = linear
    return StoredReadouts(int(facts["num_layers"]), by_depth)


def _check_facts(file: Path, facts: Mapping[str, str], linear: nn.Linear, whole: nn.Linear) -> None:
    """Refuse the readout of another model, depth or width."""
    if facts.get("of") != _fingerprint(whole):
        raise ValueError(
            f"{file} belongs to other weights than the model.safetensors beside it, so its embeddings would not be in "
            "the space of the whole model. Save the aligned model again, or align it again."
        )
    if file.name != readout_file(facts["depth"]):
        raise ValueError(f"{file} holds the readout of {facts['depth']} layers. Download or save the aligned model again.")
    if linear.weight.shape != whole.weight.shape:
        found, expected = (" x ".join(map(str, each.weight.shape)) for each in (linear, whole))
        raise ValueError(f"{file} is {found}, the whole model's is {expected}. Download or save the aligned model again.")


def _fingerprint(linear: nn.Linear) -> str:
    """Of the whole model's map, so that readouts are not taken for those of another."""
    weight, bias = linear.weight.detach(), linear.bias.detach()
    values = torch.cat([weight.flatten(), bias]).float().cpu().contiguous()
    return hashlib.sha256(str(tuple(weight.shape)).encode() + values.numpy().tobytes()).hexdigest()


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    """An affine map of these values."""
    with torch.device("meta"):  # its own values would be replaced at once
        linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight, linear.bias = nn.Parameter(weight.contiguous()), nn.Parameter(bias.contiguous())
    return linear
