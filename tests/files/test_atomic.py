"""Places that cannot be written are refused before the work, whatever user runs it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import encode_to_parquet, evaluate, evaluate_truncations, sts_task
from st_matryoshka2d.files.atomic import check_writable_file, check_writable_folder
from tests.support.disk import full_disk
from tests.support.grids import random_grid


def below_a_file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("a file")
    return tmp_path / "file" / "folder"


@contextmanager
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that even root cannot write to, or a folder whose bits say so."""
    place = tmp_path / "read-only"
    place.mkdir()
    with ExitStack() as after:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", place], capture_output=True)
        if mounted.returncode == 0:
            after.callback(subprocess.run, ["umount", place], check=True)
        elif os.geteuid():
            place.chmod(0o500)
            after.callback(place.chmod, 0o700)
        else:
            pytest.skip("root here may write everywhere and mount nothing")
        yield place


@pytest.mark.parametrize("check", [check_writable_folder, lambda folder: check_writable_file(folder / "file.csv")])
def test_a_place_that_cannot_be_made_is_refused(check: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="could not write"):
        check(below_a_file(tmp_path))
    with read_only(tmp_path) as place, pytest.raises(OSError, match="could not write"):
        check(place / "new")


def test_a_full_disk_is_refused(tmp_path: Path) -> None:
    with full_disk(room=100), pytest.raises(OSError, match="could not write"):
        check_writable_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder; name a file in it"):
        check_writable_file(tmp_path)


def test_a_place_is_made_and_left_empty(tmp_path: Path) -> None:
    check_writable_file(tmp_path / "a" / "b" / "grid.csv")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b"]


PAIRS = pd.DataFrame({"sentence1": ["a cat", "rain"], "sentence2": ["a kitten", "snow"], "score": [5, 3]})


@pytest.mark.parametrize(
    "work",
    [
        lambda model, place: evaluate(model, sts_task(PAIRS), sizes=["1L-8d"], cache=place),
        lambda model, place: evaluate_truncations(model, sts_task(PAIRS), [8], cache=place),
        lambda model, place: encode_to_parquet(model, ["a cat"], place, ["1L-8d"]),
        lambda model, place: random_grid(0).plot(place / "grid.png"),
    ],
    ids=["evaluate", "evaluate_truncations", "encode_to_parquet", "plot"],
)
def test_nothing_is_computed_for_a_place_that_cannot_be_written(
    work: Callable[[SentenceTransformer, Path], None],
    tiny: SentenceTransformer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SentenceTransformer, "encode", lambda *_, **__: pytest.fail("encoded"))
    monkeypatch.setattr("st_matryoshka2d.plots.heat_map.heat_map", lambda *_, **__: pytest.fail("drawn"))
    with read_only(tmp_path) as place, pytest.raises(OSError, match="could not write"):
        work(tiny, place)
