"""The header of a safetensors file: which tensor lies where. Read with distrust, written for a piece.

A file is 8 bytes (the header's length, little-endian), the header (a JSON object), and the tensors' bytes, which follow one
another without a gap from the header's end to the end of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from st_matryoshka2d.pieces.strict_json import LONGEST, parse_object, short

__all__ = ["BITS", "Header", "Stored", "header_of", "read_header", "written_header"]

# Bits of one number of each dtype that the format knows.
BITS = {
    **dict.fromkeys(("F4",), 4),
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
    """A tensor in a file: its bytes are those from `start` up to `stop`, counted from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Header:
    """What a file holds, in the order in which it lies there.

    Attributes:
        tensors: The tensors.
        metadata: The file's own notes; None where it has none.
    """

    tensors: tuple[Stored, ...]
    metadata: dict[str, str] | None


def read_header(read: Callable[[int, int], bytes], size: int, what: str) -> Header:
    """Read and check the header of a file.

    Args:
        read: Gives the bytes of the file from a position up to another.
        size: Length of the file in bytes.
        what: What the file is called, for the errors.

    Raises:
        ValueError: The header is not that of a whole, sound safetensors file.
    """
    if size < _PREFIX:
        raise ValueError(f"{what} has {size} bytes; a safetensors file begins with {_PREFIX} that give its header's length.")
    length = int.from_bytes(read(0, _PREFIX), "little")
    if length > LONGEST:
        raise ValueError(f"{what} says that its header is {length} bytes long; no more than {LONGEST} are allowed.")
    begin = _PREFIX + length
    if begin > size:
        raise ValueError(f"{what} says that its header is {length} bytes long, but the whole file has {size} bytes.")
    text = read(_PREFIX, begin)
    if not text.startswith(b"{"):
        raise ValueError(f"The header of {what} must begin with '{{', found {text[:20]!r}.")
    found = parse_object(text, f"The header of {what}")
    metadata = found.pop(_METADATA, None)
    if metadata is not None and not _is_text_by_name(metadata):
        raise ValueError(f"{_METADATA} in the header of {what} must be an object of strings, found {short(metadata)}.")
    tensors = [_stored(name, entry, begin, size, what) for name, entry in found.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    reached = begin
    for tensor in tensors:
        if tensor.start != reached:
            raise ValueError(
                f"{short(tensor.name)} in {what} begins at byte {tensor.start}; the tensor before it ends at {reached}. "
                "Tensors must follow one another without gap or overlap."
            )
        reached = tensor.stop
    if reached != size:
        raise ValueError(f"The tensors of {what} end at byte {reached}, but the file has {size} bytes.")
    return Header(tuple(tensors), metadata)


def header_of(path: Path, what: str) -> Header:
    """Read and check the header of a file that is here.

    Args:
        path: Where it is.
        what: What it is called, for the errors.

    Raises:
        ValueError: As `read_header`.
    """
    with path.open("rb") as file:

        def read(start: int, stop: int) -> bytes:
            file.seek(start)
            return file.read(stop - start)

        return read_header(read, path.stat().st_size, what)


def written_header(tensors: Iterable[Stored], metadata: dict[str, str] | None) -> bytes:
    """The beginning of a file in which these tensors follow one another: the header's length and the header.

    Args:
        tensors: Tensors of any files, in the order that they are to have.
        metadata: Notes to write into the header.
    """
    header: dict[str, Any] = {} if metadata is None else {_METADATA: metadata}
    reached = 0
    for tensor in tensors:
        stop = reached + tensor.stop - tensor.start
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [reached, stop]}
        reached = stop
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)  # tensors that begin at a multiple of 8 can be mapped into memory
    return len(text).to_bytes(_PREFIX, "little") + text


def _stored(name: str, entry: Any, begin: int, size: int, what: str) -> Stored:
    where = f"{short(name)} in the header of {what}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise ValueError(f"{where} must have a dtype, a shape and data_offsets, found {short(entry)}.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"{where} has the unknown dtype {short(dtype)}.")
    if not _are_counts(shape):
        raise ValueError(f"{where} has the shape {short(shape)}; whole numbers of 0 or more were expected.")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{where} has the data_offsets {short(offsets)}; a begin and an end no smaller were expected.")
    start, stop = begin + offsets[0], begin + offsets[1]
    if stop > size:
        raise ValueError(f"{where} ends at byte {short(stop)} of a file of {size} bytes.")
    bits = _bits(dtype, shape, 8 * size)
    if bits is None or bits != 8 * (stop - start):
        raise ValueError(f"{where} is {dtype} of shape {short(shape)}, which does not take {stop - start} bytes.")
    return Stored(name, dtype, tuple(shape), start, stop)


def _bits(dtype: str, shape: list[int], most: int) -> int | None:
    """How many bits the tensor takes; None for more than the file has, found without multiplying giants."""
    if 0 in shape:
        return 0
    bits = BITS[dtype]
    for length in shape:
        bits *= length
        if bits > most:
            return None
    return bits


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def _is_text_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
