"""Random safetensors files with every kind of invalid header."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors.numpy import save

Broken = Callable[[random.Random, dict[str, Any], bytes], bytes]
DTYPES = ["float64", "float32", "float16", "int64", "int32", "uint8", "bool"]


def sound(rng: random.Random) -> bytes:
    names = [f"encoder.layer.{index}.weight" for index in range(rng.randint(2, 6))]
    shapes = [tuple(rng.randint(0, 4) for _ in range(rng.randint(0, 3))) for _ in names]
    shapes[0] = (rng.randint(2, 5), 3)
    return save({name: np.ones(shape, rng.choice(DTYPES)) for name, shape in zip(names, shapes, strict=True)}, {"a": "b"})


def apart(content: bytes) -> tuple[dict[str, Any], bytes]:
    begin = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:begin]), content[begin:]


def joined(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes: Any) -> Broken:
    """Change the header entry of the tensor at the end; a callable receives the old value."""

    def broken(rng: random.Random, header: dict[str, Any], data: bytes) -> bytes:
        tensor = max((value for name, value in header.items() if name != "__metadata__"), key=lambda t: t["data_offsets"][1])
        for name, change in changes.items():
            tensor[name] = change(tensor[name], rng) if callable(change) else change
        return joined(header, data)

    return broken


def without(field: str) -> Broken:
    def broken(rng: random.Random, header: dict[str, Any], data: bytes) -> bytes:
        del header["encoder.layer.0.weight"][field]
        return joined(header, data)

    return broken


def text(change: Callable[[random.Random, bytes], bytes]) -> Broken:
    """Change the header's text and keep its length field valid."""
    return lambda rng, header, data: joined(change(rng, json.dumps(header).encode()), data)


def content(change: Callable[[random.Random, bytes], bytes]) -> Broken:
    return lambda rng, header, data: change(rng, joined(header, data))


def overlapping(rng: random.Random, header: dict[str, Any], data: bytes) -> bytes:
    header["encoder.layer.0.bias"] = dict(header["encoder.layer.0.weight"])
    return joined(header, data)


def gappy(rng: random.Random, header: dict[str, Any], data: bytes) -> bytes:
    del header["encoder.layer.0.weight"]
    return joined(header, data)


BROKEN: dict[str, Broken] = {
    "no bytes for the length": content(lambda rng, file: file[: rng.randint(0, 7)]),
    "cut off in the header": content(lambda rng, file: file[: rng.randint(8, 8 + int.from_bytes(file[:8], "little") - 1)]),
    "cut off in the data": content(lambda rng, file: file[: -rng.randint(1, 6)]),
    "bytes after the data": content(lambda rng, file: file + rng.randbytes(rng.randint(1, 50))),
    "a length beyond the file": content(
        lambda rng, file: (len(file) + rng.randint(1, 10**6)).to_bytes(8, "little") + file[8:]
    ),
    "an absurd length": content(lambda rng, file: rng.randint(2**27, 2**64 - 1).to_bytes(8, "little") + file[8:]),
    "a short length": content(lambda rng, file: rng.randint(0, 20).to_bytes(8, "little") + file[8:]),
    "no JSON": text(lambda rng, head: b"{" + rng.randbytes(rng.randint(0, 90))),
    "no UTF-8": text(lambda rng, head: head.replace(b"encoder", b"enc\xff\xfeder", 1)),
    "space before": text(lambda rng, head: b" " + head),
    "a mark before": text(lambda rng, head: b"\xef\xbb\xbf" + head),
    "no object": text(lambda rng, head: rng.choice([b"[]", b"[" + head + b"]", b"1", b'"text"', b"null"])),
    "an object after": text(lambda rng, head: head + head),
    "a list without end": text(lambda rng, head: b'{"a":' + b"[" * rng.randint(2_000, 90_000)),
    "objects without end": text(lambda rng, head: b'{"a":' * rng.randint(2_000, 90_000)),
    "a name twice": text(lambda rng, head: b'{"x":1,"x":2,' + head[1:]),
    "a tensor twice": text(lambda rng, head: head[:-1] + b"," + head[1:]),
    "half a character": text(lambda rng, head: head.replace(b"encoder", b"\\ud800", 1)),
    "not a number": entry(shape=[float("nan")]),
    "a number without end": text(lambda rng, head: head.replace(b'"shape": [', b'"shape": [' + b"9" * 6_000 + b", ", 1)),
    "metadata of numbers": lambda rng, header, data: joined({**header, "__metadata__": {"format": rng.random()}}, data),
    "metadata that is a list": lambda rng, header, data: joined({**header, "__metadata__": ["pt"]}, data),
    "an entry that is none": lambda rng, header, data: joined({**header, "x": rng.choice([1, "a", None, [], {}])}, data),
    "without a dtype": without("dtype"),
    "without a shape": without("shape"),
    "without offsets": without("data_offsets"),
    "an unknown dtype": entry(dtype=lambda old, rng: rng.choice(["F31", "f32", "", "float32", 7, None, ["F32"], "PICKLE"])),
    "a shape too large": entry(shape=lambda old, rng: [*old, rng.randint(2, 10**9)]),
    "a giant shape": entry(shape=lambda old, rng: [rng.randint(2, 2**64)] * rng.randint(2, 5_000)),
    "a shape too small": entry(shape=lambda old, rng: [*old, 0]),
    "a negative shape": entry(shape=lambda old, rng: [-length for length in old] + [-1] * (1 + len(old) % 2)),
    "a shape of fractions": entry(shape=lambda old, rng: [float(length) + rng.choice([0.0, 0.5]) for length in (*old, 1)]),
    "a shape of truths": entry(shape=lambda old, rng: [*old, True]),
    "a shape of words": entry(shape=lambda old, rng: rng.choice(["2", ["2"], {"0": 2}, None, 6, [[2]]])),
    "offsets beyond the file": entry(data_offsets=lambda old, rng: [number + rng.randint(1, 10**12) for number in old]),
    "offsets the wrong way": entry(data_offsets=lambda old, rng: old[::-1]),
    "negative offsets": entry(data_offsets=lambda old, rng: [-rng.randint(1, 99), old[1]]),
    "three offsets": entry(data_offsets=lambda old, rng: [*old, old[1]]),
    "one offset": entry(data_offsets=lambda old, rng: old[:1]),
    "giant offsets": entry(data_offsets=lambda old, rng: [old[0], 2 ** rng.randint(63, 9_000)]),
    "no offsets": entry(data_offsets=lambda old, rng: rng.choice([None, "0:1", {"begin": 0}, 3])),
    "a shorter tensor": entry(data_offsets=lambda old, rng: [old[0], old[1] - 1]),
    "tensors that overlap": overlapping,
    "a gap": gappy,
}


def broken_files(count: int, seed: int) -> list[tuple[str, bytes]]:
    rng = random.Random(seed)
    kinds = list(BROKEN)
    files = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        files.append((kind, BROKEN[kind](rng, *apart(sound(rng)))))
    return files
