"""Checkpoints of several files: the index says which tensor is in which shard."""

from __future__ import annotations

from collections.abc import Container
from pathlib import PurePosixPath, PureWindowsPath

from st_matryoshka2d.pieces.strict_json import parse_object, short

__all__ = ["parse_index", "require_inside"]


def parse_index(text: bytes, what: str, files: Container[str] | None = None, ending: str = ".safetensors") -> dict[str, str]:
    """Read `model.safetensors.index.json`: the shard of each tensor.

    Args:
        text: The file's bytes.
        what: What the file is called, for the errors.
        files: What there is beside it; None if that does not matter.
        ending: What shards are called.

    Raises:
        ValueError: It is no index, or it names a shard that is no such file beside it.
    """
    shards = parse_object(text, what).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ValueError(f"{what} must have a `weight_map` that names the shard of each tensor, found {short(shards)}.")
    for tensor, shard in shards.items():
        if not isinstance(shard, str) or not shard.endswith(ending):
            raise ValueError(f"{what} puts {short(tensor)} into {short(shard)}, which is no {ending} file.")
        require_inside(shard, what)
        if files is not None and shard not in files:
            raise ValueError(f"{what} names {short(shard)}, which is not beside it.")
    return shards


def require_inside(path: str, what: str) -> str:
    """The path, if it stays inside the folder that it is relative to.

    Args:
        path: A path that somebody else wrote.
        what: Where it is written, for the error.

    Raises:
        ValueError: It leads out of the folder, on this system or another, or is no path at all.
    """
    other = PureWindowsPath(path)  # knows backslashes, drives, and everything that a POSIX path knows
    if not path or path.startswith("/") or other.anchor or ".." in other.parts or not path.isprintable():
        raise ValueError(f"{what} names the path {path[:100]!r}, which is not inside the repository.")
    return PurePosixPath(path).as_posix()
