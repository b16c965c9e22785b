"""Broken cache files are named and never become scores."""

from __future__ import annotations

import os
import random
import re
import time
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size
from st_matryoshka2d.evaluation import search, store
from tests.support.disk import full_disk
from tests.support.quick import quick
from tests.support.results import assert_identical, files, read_whole
from tests.support.search import FewResults
from tests.support.sts import LocalSTS, quiet
from tests.support.task_types import marks

pytestmark = marks

SIZES = [Size(1, 8)]


def interrupted(model: SentenceTransformer, task: Any, folder: Path, batches: int) -> None:
    """Run an evaluation that writes results at once and fails after some batches."""
    left = iter(range(batches))

    def stop(module: torch.nn.Module, args: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    hook = cast("Any", model[0]).model.get_input_embeddings().register_forward_pre_hook(stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_BETWEEN_SAVES", 0.0)
        with pytest.raises(KeyboardInterrupt):
            quiet(model, task, sizes=SIZES, cache=folder, corpus_chunk_size=7)
    hook.remove()


@pytest.mark.parametrize(
    ("longest", "what"),
    [(1000, r"/texts-[^/]*/000000\.safetensors"), (3000, r"/STS13\.json"), (5000, r"/cells/1L-8d\.parquet")],
    ids=["texts", "result", "cell"],
)
def test_full_disk_error_names_file_and_leaves_no_partial_file(
    tiny: SentenceTransformer, tmp_path: Path, longest: int, what: str
) -> None:
    expected = quiet(tiny, LocalSTS(), sizes=SIZES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.Store, "check_writable", lambda _: None)  # the disk is full only later
        with pytest.raises(OSError, match=f"{re.escape(str(tmp_path))}.*{what}"), full_disk(longest):
            quiet(tiny, LocalSTS(), sizes=SIZES, cache=tmp_path)
    for path in files(tmp_path):
        read_whole(path)
    assert_identical(quiet(tiny, LocalSTS(), sizes=SIZES, cache=tmp_path), expected)


FILES = ["cells/1L-8d.parquet", "cells/1L-8d.json", "texts-query*/000000.safetensors", "search-*"]


@pytest.mark.parametrize(("what", "cut"), quick(product(FILES, (True, False)), (FILES[0], True), (FILES[-1], False)))
def test_broken_file_is_named_and_can_be_deleted(tiny: SentenceTransformer, tmp_path: Path, what: str, cut: bool) -> None:
    expected = quiet(tiny, FewResults(), sizes=SIZES)
    if what.startswith("cells"):
        quiet(tiny, FewResults(), sizes=SIZES, cache=tmp_path)
    else:
        interrupted(tiny, FewResults(), tmp_path, batches=12)
    (broken,) = tmp_path.glob(f"st_matryoshka2d/*/*/*/{what}")
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2] if cut else b"\xff" * len(whole))
    with pytest.raises(ValueError, match=f"{broken.name} cannot be read. Delete it"):
        quiet(tiny, FewResults(), sizes=SIZES, cache=tmp_path, corpus_chunk_size=7)
    broken.unlink()
    assert_identical(quiet(tiny, FewResults(), sizes=SIZES, cache=tmp_path, corpus_chunk_size=7), expected)
    assert not [path for path in files(tmp_path) if path.suffix == ".safetensors"]


def test_flipped_bit_never_changes_a_score(tiny: SentenceTransformer, tmp_path: Path) -> None:
    grid = quiet(tiny, LocalSTS(), sizes=SIZES, cache=tmp_path)
    (cell,) = tmp_path.rglob("*.parquet")
    whole, seed = cell.read_bytes(), random.randrange(10**6)
    # before the footer with column names
    pages = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    generator, errors = random.Random(seed), []
    for _ in range(25):
        broken = bytearray(whole)
        broken[generator.randrange(pages)] ^= 1 << generator.randrange(8)
        cell.write_bytes(broken)
        try:
            assert_identical(quiet(tiny, LocalSTS(), sizes=SIZES, cache=tmp_path), grid)
        except ValueError as error:
            errors.append(str(error))
    assert len(errors) > 3, seed
    assert all(str(cell) in error for error in errors), seed


def test_keeps_files_of_running_and_removes_those_of_killed_runs(tiny: SentenceTransformer, tmp_path: Path) -> None:
    quiet(tiny, LocalSTS(), sizes=SIZES, cache=tmp_path)
    (cell,) = tmp_path.rglob("*.parquet")
    expected = files(tmp_path)
    for age in (-3600.0, 3600.0):
        for path in (cell.parent / f".{age}.part.parquet", cell.parents[1] / f".tmp{age}", cell.parents[1] / f"new-{age}"):
            path.mkdir() if path.name.startswith("new") else path.touch()
            os.utime(path, (time.time() - age,) * 2)
    quiet(tiny, LocalSTS(), sizes=SIZES, cache=tmp_path)
    left = {path.name for path in tmp_path.rglob("*3600*")}
    assert left == {".-3600.0.part.parquet", ".tmp-3600.0", "new--3600.0"}
    assert set(expected) < set(files(tmp_path))
