"""Write, read and check the files of readouts, and of the token table of depth 0."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.atomic import replace_file
from st_matryoshka2d.model.table import Table, fit_in

# the tensors of a table; the second is JSON in UTF-8
_ROWS, _TOKENIZER = "embedding.weight", "tokenizer"


class StoredReadouts(NamedTuple):
    """N of their model, the maps by depth, and the table of depth 0."""

    num_layers: int
    by_depth: dict[int, nn.Linear]
    table: Table | None = None


def readout_file(num_layers: int | str) -> str:
    """Return the file name for a depth; the content has the form of a `Dense`'s `model.safetensors`."""
    return f"readout-{num_layers}L.safetensors"


def write_readouts(folder: Path, whole: nn.Linear, readouts: StoredReadouts) -> None:
    """Write a file for each depth, with a fingerprint of the map of the full depth; remove files of other depths."""
    stored = {depth: _of_map(linear) for depth, linear in readouts.by_depth.items()}
    if readouts.table is not None:
        stored[0] = _of_table(readouts.table)
    for of_another in set(folder.glob(readout_file("*"))) - {folder / readout_file(depth) for depth in stored}:
        of_another.unlink()
    about = {"num_layers": str(readouts.num_layers), "of": _fingerprint(whole)}
    for depth, tensors in stored.items():
        facts = {**about, "depth": str(depth), **(readouts.table.facts if readouts.table and not depth else {})}
        replace_file(folder / readout_file(depth), partial(save_file, tensors, metadata=facts))


def _of_map(linear: nn.Linear) -> dict[str, Tensor]:
    return {f"linear.{name}": tensor.contiguous() for name, tensor in linear.state_dict().items()}


def _of_table(table: Table) -> dict[str, Tensor]:
    """Return rows and tokenizer in one file, because neither is of use without the other."""
    text = np.frombuffer(table.tokenizer.to_str().encode(), dtype=np.uint8)
    return {_ROWS: table.embedding.weight.detach().contiguous(), _TOKENIZER: torch.from_numpy(text.copy())}


def read_readouts(files: Iterable[Path], whole: nn.Linear) -> StoredReadouts:
    """Read the files of one folder; refuse the readout of another model, depth or width."""
    fingerprint = _fingerprint(whole)
    by_depth: dict[int, nn.Linear] = {}
    table: Table | None = None
    facts: dict[str, str] = {}
    for file in sorted(files):
        facts, readout = _read(file)
        if facts.get("of") != fingerprint:
            raise UsageError(
                f"{file} belongs to other weights than the model.safetensors in the same folder, so its embeddings would "
                "not be in the space of the whole model. Save the aligned model again, or align it again."
            )
        if file.name != readout_file(facts["depth"]):
            raise UsageError(
                f"{file} holds the readout of {facts['depth']} layers. Download or save the aligned model again."
            )
        if isinstance(readout, Table):
            table = readout
            _require_shape(file, table.embedding.weight, (table.tokenizer.get_vocab_size(), whole.weight.shape[0]))
        else:
            by_depth[int(facts["depth"])] = readout
            _require_shape(file, readout.weight, tuple(whole.weight.shape))
    return StoredReadouts(int(facts["num_layers"]), by_depth, table)


def _read(file: Path) -> tuple[dict[str, str], nn.Linear | Table]:
    """Read a map or a table, and what the file says of it."""
    try:
        with safe_open(file, framework="pt") as opened:
            facts = opened.metadata() or {}
            if _ROWS not in opened.keys():  # noqa: SIM118  # no dict
                return facts, linear_of(opened.get_tensor("linear.weight"), opened.get_tensor("linear.bias"))
            tokenizer = Tokenizer.from_str(opened.get_tensor(_TOKENIZER).numpy().tobytes().decode())
            return facts, Table.of(Table(tokenizer, embedding_weights=opened.get_tensor(_ROWS)), fit_in(facts))
    except (SafetensorError, OSError, IndexError) as error:
        raise UsageError(f"{file} cannot be read: {error}. Download or save the aligned model again.") from error
    except Exception as error:  # as the library raises of a tokenizer
        raise UsageError(f"{file} has no usable tokenizer: {error}. Fit the queries again.") from error


def _require_shape(file: Path, tensor: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != expected:
        actual, wanted = (" x ".join(map(str, shape)) for shape in (tensor.shape, expected))
        raise UsageError(f"{file} is {actual}, but must be {wanted}. Download or save the aligned model again.")


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
