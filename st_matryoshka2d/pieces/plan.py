"""Which bytes of which files a piece is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from st_matryoshka2d.pieces.checkpoint import INDEX, WEIGHTS, Checkpoint
from st_matryoshka2d.pieces.header import BITS, Header, Stored, read_header
from st_matryoshka2d.pieces.remote import RemoteFile, remote_file
from st_matryoshka2d.pieces.shards import parse_index
from st_matryoshka2d.pieces.strict_json import LONGEST, short

__all__ = ["NamesUnknownError", "Plan", "plan_of", "plan_piece", "shards_of"]

Opened = tuple[RemoteFile, Header]


class NamesUnknownError(Exception):
    """The checkpoint calls its tensors so that those of the upper blocks cannot be told from the others."""


@dataclass(frozen=True)
class Plan:
    """What a piece is made of.

    Attributes:
        kept: The tensors and the files that they are in, in the order in which the piece has them.
        metadata: The notes in the first file.
    """

    kept: tuple[tuple[RemoteFile, Stored], ...]
    metadata: dict[str, str] | None

    @property
    def tensors(self) -> list[Stored]:
        """The tensors alone."""
        return [tensor for _, tensor in self.kept]

    def ranges(self) -> Iterator[tuple[RemoteFile, int, int]]:
        """File, begin and end of what one request can bring: neighbours come together."""
        (file, first), *rest = self.kept
        start, stop = first.start, first.stop
        for other, tensor in rest:
            if other is not file or tensor.start != stop:
                yield file, start, stop
                file, start = other, tensor.start
            stop = tensor.stop
        yield file, start, stop


def plan_piece(checkpoint: Checkpoint, above: Callable[[Iterable[str]], set[str] | None]) -> Plan:
    """Read the headers of the Transformer's files, no more of them than is needed, and choose.

    Args:
        checkpoint: A checkpoint on the Hub.
        above: Picks the names of the tensors to leave out; None if it cannot.

    Raises:
        NamesUnknownError: `above` cannot pick.
        RangesRefusedError: The server gives whole files only.
        ValueError: A header or the index is broken, or they contradict each other.
    """
    return plan_of(shards_of(checkpoint), above, lambda file: _remote_header(checkpoint, file))


def plan_of(
    shards: Mapping[str, str], above: Callable[[Iterable[str]], set[str] | None], open_file: Callable[[str], Opened]
) -> Plan:
    """Choose among the tensors of one file or several.

    Args:
        shards: The file of each tensor; empty where one file has them all.
        above: Picks the names of the tensors to leave out; None if it cannot.
        open_file: Finds a file and reads its header.

    Raises:
        NamesUnknownError: `above` cannot pick.
        ValueError: The files are not what `shards` says, or have a tensor twice.
    """
    headers: list[Opened] = []
    if shards:
        left_out = _known(above(shards))
        names: dict[str, set[str]] = {}
        for name, shard in shards.items():
            names.setdefault(shard, set()).add(name)
        for shard in sorted(shard for shard, of_shard in names.items() if of_shard - left_out):
            headers.append(open_file(shard))
            if absent := names[shard] - {tensor.name for tensor in headers[-1][1].tensors}:
                raise ValueError(f"{INDEX} puts {short(min(absent))} into {short(shard)}, which does not have it.")
    else:
        headers.append(open_file(WEIGHTS))
        left_out = _known(above(tensor.name for tensor in headers[0][1].tensors))
    kept = [(file, tensor) for file, header in headers for tensor in header.tensors if tensor.name not in left_out]
    homes: dict[str, str] = {}
    for file, tensor in kept:
        if homes.setdefault(tensor.name, file.path) != file.path:
            both = f"{short(homes[tensor.name])} and {short(file.path)}"
            raise ValueError(f"{short(tensor.name)} is in more than one file: {both}.")
    # Wide numbers first, as the library writes them: each tensor begins at a multiple of what one of its numbers takes.
    kept.sort(key=lambda pair: -BITS[pair[1].dtype])
    return Plan(tuple(kept), headers[0][1].metadata)


def shards_of(checkpoint: Checkpoint) -> dict[str, str]:
    """The file of each of the Transformer's tensors; empty where one file has them all.

    Args:
        checkpoint: A checkpoint on the Hub.

    Raises:
        ValueError: The index is broken, or names a file that is not there.
    """
    if checkpoint.within_transformer(WEIGHTS) in checkpoint.files:
        return {}
    if (size := _remote(checkpoint, INDEX).size) > LONGEST:
        raise ValueError(f"{INDEX} of {checkpoint.name} has {size} bytes; no more than {LONGEST} are read.")
    beside = {path for path in map(PurePosixPath, checkpoint.files) if path.is_relative_to(checkpoint.transformer)}
    files = {path.relative_to(checkpoint.transformer).as_posix() for path in beside}
    return parse_index(checkpoint.download(INDEX).read_bytes(), INDEX, files)


def _remote_header(checkpoint: Checkpoint, file: str) -> Opened:
    remote = _remote(checkpoint, file)
    return remote, read_header(remote.read, remote.size, remote.path)


def _remote(checkpoint: Checkpoint, file: str) -> RemoteFile:
    return remote_file(checkpoint.name, checkpoint.within_transformer(file), str(checkpoint.commit), checkpoint.token)


def _known(names: set[str] | None) -> set[str]:
    if names is None:
        raise NamesUnknownError("The names of its tensors do not show which belong to which layer.")
    return names
