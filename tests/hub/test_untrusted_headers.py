"""Untrusted headers, indices and shards: valid ones are read like the library does, broken ones are refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from safetensors import SafetensorError, deserialize

from st_matryoshka2d.files.safetensors_header import (
    Header,
    Stored,
    WholeFileNeededError,
    parse_index,
    read_header,
    written_header,
)
from st_matryoshka2d.hub.remote_file import RemoteFile
from st_matryoshka2d.hub.tensors import Plan, names_kept, plan_of
from tests.support.broken_files import broken_files, joined, sound
from tests.support.broken_shards import DEPTH, INDEX, KEPT, OUTSIDE, Files, broken_checkpoints, with_index
from tests.support.broken_shards import sound as sound_shards


def read(content: bytes) -> Header:
    return read_header(lambda start, stop: content[start:stop], len(content), "model.safetensors")


# Stricter than the library, in line with its format specification.
STRICTER = {"a name twice", "a tensor twice", "half a character", "space before"}


def test_refuses_hundreds_of_broken_headers_and_checkpoints() -> None:
    made: list[tuple[str, Any]] = [*broken_files(600, seed=20260), *broken_checkpoints(400, seed=20261)]
    for kind, file in made:
        with pytest.raises(ValueError, match="safetensors") as refused:
            read(file) if isinstance(file, bytes) else plan(file)
        assert len(str(refused.value)) < 800, kind
        if isinstance(file, bytes) and kind not in STRICTER:
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


@pytest.mark.parametrize("path", [*OUTSIDE, "a\0{}"])
def test_an_index_leads_nowhere_outside(path: str) -> None:
    """Whatever files there are; other faults of an index are among those of checkpoints above."""
    text = json.dumps({"weight_map": {"w": path.format("x.safetensors")}})
    with pytest.raises(ValueError, match="not inside the repository"):
        parse_index(text.encode(), INDEX)


def plan(files: Files) -> Plan:
    """Plan the download of a repository with these files, like `fetch_piece`."""

    def opened(name: str) -> tuple[RemoteFile, Any]:
        content = files[name]
        header = read_header(lambda start, stop: content[start:stop], len(content), name)
        return RemoteFile(name, "", {}, len(content)), header

    shards = parse_index(files[INDEX], INDEX, files)
    return plan_of(shards, names_kept(shards, ["encoder.layer"], DEPTH, range(KEPT)), opened)


def test_plans_valid_shards_like_library() -> None:
    """Wrong sizes in the index metadata are ignored."""
    rng = random.Random(1)
    for notes in ({}, {"metadata": None}, {"metadata": {"total_size": -(10**30)}}, {"metadata": [1]}, {"more": "x"}):
        files, homes = sound_shards(rng)
        found = plan(with_index(files, homes, **notes))
        theirs = {name: info for file in files.values() for name, info in deserialize(file)}
        kept = {name for name in theirs if not name.startswith(("encoder.layer.2.", "encoder.layer.3."))}
        assert {tensor.name: (tensor.dtype, list(tensor.shape)) for tensor in found.tensors} == {
            name: (theirs[name]["dtype"], list(theirs[name]["shape"])) for name in kept
        }
        for file, tensor in found.kept:
            assert files[file.path][tensor.start : tensor.stop] == bytes(theirs[tensor.name]["data"])


def test_random_changes_are_refused_or_harmless() -> None:
    """All planned ranges lie within the files and equal what the library reads."""
    rng = random.Random(11)
    accepted = 0
    for _ in range(500):
        files = with_index(*sound_shards(rng))
        name = rng.choice(sorted(files))
        content = bytearray(files[name])
        content[rng.randrange(len(content))] = rng.choice([rng.randrange(256), *b'{}[],:"0129'])
        files[name] = bytes(content)
        try:
            found = plan(files)
        except (ValueError, WholeFileNeededError):  # WholeFileNeededError if a block's name is lost
            continue
        accepted += 1
        for file in {file.path for file, _ in found.kept}:
            try:
                theirs = {tensor for tensor, _ in deserialize(files[file])}
            except SafetensorError as error:
                pytest.fail(f"{file} was taken, and the library says {error}")
            assert {tensor.name for other, tensor in found.kept if other.path == file} <= theirs
    assert 50 < accepted < 450
