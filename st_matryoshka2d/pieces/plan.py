"""Which bytes of which files a piece is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from st_matryoshka2d.pieces.checkpoint import INDEX, WEIGHTS, Checkpoint
from st_matryoshka2d.pieces.header import BITS, Header, Stored, read_header
from st_matryoshka2d.pieces.remote import RemoteFile, remote_file
from st_matryoshka2d.pieces.shards import parse_index

__all__ = ["NamesUnknownError", "Plan", "plan_piece", "shards_of"]


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
    headers: list[tuple[RemoteFile, Header]] = []
    if shards := shards_of(checkpoint):
        left_out = _known(above(shards))
        for shard in sorted({shard for name, shard in shards.items() if name not in left_out}):
            headers.append(_remote_header(checkpoint, shard))
            there = {tensor.name for tensor in headers[-1][1].tensors}
            if absent := {name for name, home in shards.items() if home == shard} - there:
                raise ValueError(f"{INDEX} puts {min(absent)!r} into {shard}, which does not have it.")
    else:
        headers.append(_remote_header(checkpoint, WEIGHTS))
        left_out = _known(above(tensor.name for tensor in headers[0][1].tensors))
    kept = [(file, tensor) for file, header in headers for tensor in header.tensors if tensor.name not in left_out]
    if len({tensor.name for _, tensor in kept}) < len(kept):
        raise ValueError(f"A tensor is in more than one of the files {[file.path for file, _ in headers]}.")
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
    shards = parse_index(checkpoint.download(INDEX).read_bytes(), INDEX)
    if absent := {shard for shard in shards.values() if checkpoint.within_transformer(shard) not in checkpoint.files}:
        raise ValueError(f"{INDEX} of {checkpoint.name} names {min(absent)!r}, which is not in the repository.")
    return shards


def _remote_header(checkpoint: Checkpoint, file: str) -> tuple[RemoteFile, Header]:
    path = checkpoint.within_transformer(file)
    remote = remote_file(checkpoint.name, path, str(checkpoint.commit), checkpoint.token)
    return remote, read_header(remote.read, remote.size, path)


def _known(names: set[str] | None) -> set[str]:
    if names is None:
        raise NamesUnknownError("The names of its tensors do not show which belong to which layer.")
    return names
