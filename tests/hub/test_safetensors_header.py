"""Untrusted headers and indices: valid ones are read like the library does, broken ones are refused."""

from __future__ import annotations

import json
import random

import pytest
from safetensors import SafetensorError, deserialize

from st_matryoshka2d.hub.safetensors_header import Header, Stored, parse_index, read_header, written_header
from tests.support.broken_files import broken_files, joined, sound


def read(content: bytes) -> Header:
    return read_header(lambda start, stop: content[start:stop], len(content), "model.safetensors")


# Stricter than the library, in line with its format specification.
STRICTER = {"a name twice", "a tensor twice", "half a character", "space before"}


def test_refuses_hundreds_of_broken_headers() -> None:
    for kind, file in broken_files(600, seed=20260):
        with pytest.raises(ValueError, match=r"model\.safetensors") as refused:
            read(file)
        assert type(refused.value) is ValueError, kind
        assert len(str(refused.value)) < 800, kind
        if kind not in STRICTER:
            with pytest.raises(SafetensorError):  # the table's entries are really broken
                deserialize(file)


def test_a_header_longer_than_the_library_reads_is_refused_before_it_is_read() -> None:
    def read_no_more(start: int, stop: int) -> bytes:
        assert (start, stop) == (0, 8)
        return (100_000_001).to_bytes(8, "little")

    with pytest.raises(ValueError, match="100000001 bytes long; no more than 100000000"):
        read_header(read_no_more, 10**12, "big")


def test_refuses_random_changes_that_library_refuses() -> None:
    rng = random.Random(7)
    accepted = 0
    for _ in range(1_000):
        file = bytearray(sound(rng))
        for _ in range(rng.randint(1, 3)):
            file[rng.randrange(len(file))] = rng.choice([rng.randrange(256), *b'{}[],:"0129'])
        try:
            theirs = {name: (str(info["dtype"]), tuple(info["shape"])) for name, info in deserialize(bytes(file))}
        except SafetensorError:
            with pytest.raises(ValueError, match=r"model\.safetensors"):
                read(bytes(file))
        else:
            assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in read(bytes(file)).tensors} == theirs
            accepted += 1
    assert 100 < accepted < 900


def test_library_reads_written_files() -> None:
    """A file of some of the tensors, assembled from header and bytes."""
    rng = random.Random(3)
    for _ in range(30):
        file = sound(rng)
        header = read(file)
        some = [tensor for tensor in header.tensors if rng.random() < 0.6]
        written = written_header(some, header.metadata) + b"".join(file[tensor.start : tensor.stop] for tensor in some)
        whole = {name: (info["dtype"], info["shape"], bytes(info["data"])) for name, info in deserialize(file)}
        part = {name: (info["dtype"], info["shape"], bytes(info["data"])) for name, info in deserialize(written)}
        assert part == {tensor.name: whole[tensor.name] for tensor in some}
        assert (8 + int.from_bytes(written[:8], "little")) % 8 == 0
        assert read(written).metadata == {"a": "b"}


def test_supports_dtypes_smaller_than_a_byte() -> None:
    tensor = Stored("w", "F4", (3, 2), 0, 3)
    assert read(written_header([tensor], None) + b"abc").tensors[0].shape == (3, 2)
    with pytest.raises(ValueError, match="F4 of shape \\[3, 3\\], which does not take 3 bytes"):
        read(joined({"w": {"dtype": "F4", "shape": [3, 3], "data_offsets": [0, 3]}}, b"abc"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not usable JSON"),
        (b"[]", "found a list"),
        (b"{}", "must have a `weight_map`"),
        (b'{"weight_map": {}}', "must have a `weight_map`"),
        (b'{"weight_map": ["a.safetensors"]}', "must have a `weight_map`"),
        (b'{"weight_map": {"w": 1}}', "not a .safetensors file"),
        (b'{"weight_map": {"w": "pytorch_model.bin"}}', "not a .safetensors file"),
        (b'{"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}}', "more than once"),
        (b'{"weight_map": ' + b'{"a":' * 50_000, "RecursionError"),
        *(
            (json.dumps({"weight_map": {"w": path}}).encode(), "not inside the repository")
            for path in (
                "../x.safetensors",
                "a/../../x.safetensors",
                "/etc/x.safetensors",
                "..\\x.safetensors",
                "C:\\x.safetensors",
                "C:x.safetensors",
                "\\\\host\\x.safetensors",
                "a\0.safetensors",
                "a\n.safetensors",
            )
        ),
    ],
)
def test_refuses_broken_indices(text: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_index(text, "model.safetensors.index.json")
