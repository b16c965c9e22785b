"""The tensors of a piece: which ones of a checkpoint it has, which of their rows, and under which names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.safetensors_header import BITS, Header, Stored, WholeFileNeededError, short
from st_matryoshka2d.hub.checkpoint import INDEX
from st_matryoshka2d.hub.remote_file import RemoteFile
from st_matryoshka2d.model.packed import runs_of


@dataclass(frozen=True)
class Plan:
    """The tensors of a piece under their new names, in its order, with the file of each; and the metadata of the first.

    A tensor of which some rows are read is there once for each run of rows.
    """

    kept: tuple[tuple[RemoteFile, Stored], ...]
    metadata: dict[str, str] | None

    @property
    def tensors(self) -> list[Stored]:
        """The tensors as they are written, without their files."""
        joined: list[Stored] = []
        for _, tensor in self.kept:
            if joined and joined[-1].name == tensor.name:
                before = joined.pop()
                rows, stop = before.shape[0] + tensor.shape[0], before.stop + tensor.stop - tensor.start
                joined.append(replace(before, shape=(rows, *tensor.shape[1:]), stop=stop))
            else:
                joined.append(tensor)
        return joined

    def with_rows(self, packed: Mapping[str, tuple[int, int]], layers: Sequence[int]) -> Plan:
        """Read only the rows of some layers of the tensors that hold all layers."""
        return replace(self, kept=tuple(part for pair in self.kept for part in _rows_kept(*pair, packed, layers)))

    def ranges(self) -> list[tuple[RemoteFile, int, int]]:
        """List file, start and stop of each request; adjacent tensors share one."""
        ranges: list[tuple[RemoteFile, int, int]] = []
        for file, tensor in self.kept:
            start = tensor.start
            if ranges and ranges[-1][0] is file and ranges[-1][2] == start:
                _, start, _ = ranges.pop()
            ranges.append((file, start, tensor.stop))
        return ranges


def plan_of(
    shards: Mapping[str, str], kept_as: Mapping[str, str], opened: Callable[[str], tuple[RemoteFile, Header]]
) -> Plan:
    """Plan the piece of some tensors, given the shard of each of all tensors, and the names of those that stay."""
    names: dict[str, set[str]] = {}
    for name, shard in shards.items():
        names.setdefault(shard, set()).add(name)
    headers: list[tuple[RemoteFile, Header]] = []
    for shard in sorted(shard for shard, of_shard in names.items() if of_shard & kept_as.keys()):
        headers.append(opened(shard))
        if absent := names[shard] - {tensor.name for tensor in headers[-1][1].tensors}:
            raise UsageError(f"{INDEX} puts {short(min(absent))} into {short(shard)}, which does not have it.")
    kept: dict[str, tuple[RemoteFile, Stored]] = {}
    for file, header in headers:
        for tensor in header.tensors:
            if tensor.name not in kept_as:
                continue
            if (name := kept_as[tensor.name]) in kept:
                both = f"{short(kept[name][0].path)} and {short(file.path)}"
                raise UsageError(f"{short(name)} is in more than one file: {both}.")
            kept[name] = file, replace(tensor, name=name)
    # Wide dtypes first, as in files of the safetensors library, so that every tensor is aligned to
    # its dtype.
    return Plan(tuple(sorted(kept.values(), key=lambda pair: -BITS[pair[1].dtype])), headers[0][1].metadata)


def names_kept(names: Collection[str], lists: Collection[str], depth: int, kept: Sequence[int]) -> dict[str, str]:
    """Select all tensors but those of other blocks, and renumber the blocks; a prefix such as `bert.` is allowed."""
    pattern = re.compile(rf"((?:.+?\.)??(?:{'|'.join(map(re.escape, lists))}))\.(0|[1-9][0-9]{{0,5}})\.")
    numbered: dict[str, dict[int, set[str]]] = {}
    for name in names:
        if match := pattern.match(name):
            numbered.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(name)
    whole = [(path, blocks) for path, blocks in numbered.items() if set(blocks) == set(range(depth))]
    if len(whole) != 1:
        raise WholeFileNeededError("The names of its tensors do not show which belong to which layer.")
    [(path, blocks)] = whole
    inside = set().union(*blocks.values())
    renumbered = {
        name: f"{path}.{place}.{name.removeprefix(f'{path}.{layer}.')}"
        for place, layer in enumerate(kept)
        for name in blocks[layer]
    }
    return {name: name for name in names if name not in inside} | renumbered


def _rows_kept(
    file: RemoteFile, tensor: Stored, packed: Mapping[str, tuple[int, int]], layers: Sequence[int]
) -> Iterator[tuple[RemoteFile, Stored]]:
    """Yield the rows of some layers of a tensor that holds all layers; any other tensor as it is."""
    place = next((place for name, place in packed.items() if f".{tensor.name}".endswith(f".{name}")), None)
    if place is None:
        yield file, tensor
        return
    dimension, height = place
    row, rest = divmod(tensor.stop - tensor.start, max(tensor.shape[:1], default=0) or 1)
    if dimension or rest or layers[-1] * height >= tensor.shape[0]:
        raise WholeFileNeededError(f"{short(tensor.name)} does not have its rows in the order of the layers.")
    for first, length in runs_of(layers):
        start, rows = tensor.start + first * height * row, length * height
        yield file, replace(tensor, shape=(rows, *tensor.shape[1:]), start=start, stop=start + rows * row)
