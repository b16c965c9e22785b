"""Sharded checkpoints with invalid indices or invalid shards."""

from __future__ import annotations

import random
from typing import Any

import pytest
from safetensors import SafetensorError, deserialize

from st_matryoshka2d.hub.piece import Plan, names_kept, plan_of
from st_matryoshka2d.hub.safetensors_header import RemoteFile, WholeFileNeededError, parse_index, read_header
from tests.support.broken_shards import DEPTH, INDEX, KEPT, Files, broken_checkpoints, sound, with_index


def plan(files: Files) -> Plan:
    """Plan the download of a repository with these files, like `fetch_piece`."""

    def opened(name: str) -> tuple[RemoteFile, Any]:
        content = files[name]
        header = read_header(lambda start, stop: content[start:stop], len(content), name)
        return RemoteFile(name, "", {}, len(content)), header

    shards = parse_index(files[INDEX], INDEX, files)
    return plan_of(shards, lambda names: names_kept(names, ["encoder.layer"], DEPTH, range(KEPT)), opened)


def test_plans_valid_shards_like_library() -> None:
    """Wrong sizes in the index metadata are ignored."""
    rng = random.Random(1)
    for notes in ({}, {"metadata": None}, {"metadata": {"total_size": -(10**30)}}, {"metadata": [1]}, {"more": "x"}):
        files, homes = sound(rng)
        found = plan(with_index(files, homes, **notes))
        theirs = {name: info for file in files.values() for name, info in deserialize(file)}
        kept = {name for name in theirs if not name.startswith(("encoder.layer.2.", "encoder.layer.3."))}
        assert {tensor.name: (tensor.dtype, list(tensor.shape)) for tensor in found.tensors} == {
            name: (theirs[name]["dtype"], list(theirs[name]["shape"])) for name in kept
        }
        for file, tensor in found.kept:
            assert files[file.path][tensor.start : tensor.stop] == bytes(theirs[tensor.name]["data"])


def test_refuses_hundreds_of_broken_checkpoints() -> None:
    for kind, files in broken_checkpoints(400, seed=20261):
        with pytest.raises(ValueError, match="safetensors") as refused:
            plan(files)
        assert type(refused.value) is ValueError, kind
        assert len(str(refused.value)) < 800, kind


def test_random_changes_are_refused_or_harmless() -> None:
    """All planned ranges lie within the files and equal what the library reads."""
    rng = random.Random(11)
    accepted = 0
    for _ in range(500):
        files = with_index(*sound(rng))
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
