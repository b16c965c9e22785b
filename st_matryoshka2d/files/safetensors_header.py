"""Strict readers of untrusted input: JSON, paths, headers of safetensors files, indices of shards.

A safetensors file is 8 bytes (the header's length, little-endian), the header (a JSON object), and
the tensors' bytes, without gaps up to the end of the file. `huggingface_hub` reads headers too, but
checks little of this and always fetches 100 KB. Nothing here imports more than Python itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from st_matryoshka2d.errors import UsageError

LONGEST = 100_000_000  # bytes of JSON; the limit of the safetensors library itself

# Bits of one number, for each dtype of the format.
BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}

_PREFIX = 8
_METADATA = "__metadata__"


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its bytes run from `start` up to `stop`, counted from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Header:
    """The tensors of a file, in the order of their bytes, and its metadata, if any."""

    tensors: tuple[Stored, ...]
    metadata: dict[str, str] | None


def read_header(read: Callable[[int, int], bytes], size: int, what: str) -> Header:
    """Read the header of a file of `size` bytes through `read(start, stop)`; refuse an invalid or incomplete file."""
    if size < _PREFIX:
        raise UsageError(f"{what} has {size} bytes; a safetensors file begins with {_PREFIX} that give its header's length.")
    length = int.from_bytes(read(0, _PREFIX), "little")
    if length > LONGEST:
        raise UsageError(f"{what} says that its header is {length} bytes long; no more than {LONGEST} are allowed.")
    begin = _PREFIX + length
    if begin > size:
        raise UsageError(f"{what} says that its header is {length} bytes long, but the whole file has {size} bytes.")
    text = read(_PREFIX, begin)
    if not text.startswith(b"{"):
        raise UsageError(f"The header of {what} must begin with '{{', found {text[:20]!r}.")
    entries = parse_object(text, f"The header of {what}")
    metadata = entries.pop(_METADATA, None)
    if metadata is not None and not (isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())):
        raise UsageError(f"{_METADATA} in the header of {what} must be an object of strings, found {short(metadata)}.")
    tensors = [_stored(name, entry, begin, size, what) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    reached = begin
    for tensor in tensors:
        if tensor.start != reached:
            raise UsageError(
                f"{short(tensor.name)} in {what} begins at byte {tensor.start}; the tensor before it ends at {reached}. "
                "Tensors must follow one another without gap or overlap."
            )
        reached = tensor.stop
    if reached != size:
        raise UsageError(f"The tensors of {what} end at byte {reached}, but the file has {size} bytes.")
    return Header(tuple(tensors), metadata)


def written_header(tensors: Iterable[Stored], metadata: dict[str, str] | None) -> bytes:
    """Return the first bytes of a file with these tensors in this order: the header and its length."""
    header: dict[str, Any] = {} if metadata is None else {_METADATA: metadata}
    reached = 0
    for tensor in tensors:
        stop = reached + tensor.stop - tensor.start
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [reached, stop]}
        reached = stop
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    # tensors that begin at a multiple of 8 can be mapped into memory
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_PREFIX, "little") + text


def parse_index(text: bytes, what: str, files: Container[str] | None = None, ending: str = ".safetensors") -> dict[str, str]:
    """Read `model.safetensors.index.json`: the shard of each tensor, which must be one of `files` if given."""
    shards = parse_object(text, what).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise UsageError(f"{what} must have a `weight_map` that names the shard of each tensor, found {short(shards)}.")
    for tensor, shard in shards.items():
        if not isinstance(shard, str) or not shard.endswith(ending):
            raise UsageError(f"{what} puts {short(tensor)} into {short(shard)}, which is not a {ending} file.")
        require_inside(shard, what)
        if files is not None and shard not in files:
            raise UsageError(f"{what} names {short(shard)}, which is missing.")
    return shards


def _stored(name: str, entry: Any, begin: int, size: int, what: str) -> Stored:
    where = f"{short(name)} in the header of {what}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise UsageError(f"{where} must have a dtype, a shape and data_offsets, found {short(entry)}.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise UsageError(f"{where} has the unknown dtype {short(dtype)}.")
    if not _are_counts(shape):
        raise UsageError(f"{where} has the shape {short(shape)}; whole numbers of 0 or more were expected.")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise UsageError(f"{where} has the data_offsets {short(offsets)}; a begin and an end no smaller were expected.")
    start, stop = begin + offsets[0], begin + offsets[1]
    if stop > size:
        raise UsageError(f"{where} ends at byte {short(stop)} of a file of {size} bytes.")
    if _bits(dtype, shape, 8 * size) != 8 * (stop - start):
        raise UsageError(f"{where} is {dtype} of shape {short(shape)}, which does not take {stop - start} bytes.")
    return Stored(name, dtype, tuple(shape), start, stop)


def _bits(dtype: str, shape: list[int], most: int) -> int | None:
    """Return the bits that the tensor takes, or None if more than `most`; no huge products are computed."""
    bits = 0 if 0 in shape else BITS[dtype]
    for length in shape:
        bits *= length
        if bits > most:
            return None
    return bits


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def parse_object(text: bytes, what: str) -> dict[str, Any]:
    """Read a JSON object; refuse one that other parsers could read differently."""
    try:
        parsed = json.loads(text.decode("utf-8"), object_pairs_hook=_without_repeats)
        # Escapes can spell lone surrogates, which UTF-8 lacks, and Python reads NaN, which JSON
        # lacks.
        json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} is not usable JSON. {type(error).__name__}: {str(error)[:300]}") from error
    if not isinstance(parsed, dict):
        raise UsageError(f"{what} must be a JSON object, found a {type(parsed).__name__}.")
    return parsed


def short(value: Any) -> str:
    """Return the repr of a value, shortened for an error message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def require_inside(path: str, what: str) -> str:
    """Return the path if it stays inside its folder, on this and on other operating systems; refuse others."""
    other = PureWindowsPath(path)  # understands backslashes and drives, and POSIX paths too
    if not path or path.startswith("/") or other.anchor or ".." in other.parts or not path.isprintable():
        raise UsageError(f"{what} names the path {path[:100]!r}, which is not inside the repository.")
    return PurePosixPath(path).as_posix()


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise UsageError(f"{name[:100]!r} appears more than once.")
    return found


class WholeFileNeededError(Exception):
    """The server sends no ranges, or the names of tensors do not show which of them belong to which block."""
