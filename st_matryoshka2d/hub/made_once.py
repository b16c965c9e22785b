"""Make a folder whole or not at all, once for all processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # lazy


@contextmanager
def made_once(folder: Path) -> Iterator[Path | None]:
    """Create a folder atomically, under a lock: yield a temporary folder to fill, or None if the folder exists."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            yield None
            return
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)  # left behind by a killed process
        unfinished.mkdir()
        try:
            with _telling_of_a_full_disk(folder):
                yield unfinished
                for path in [*unfinished.rglob("*"), unfinished]:
                    _to_disk(path)
                unfinished.rename(folder)
                _to_disk(folder.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _telling_of_a_full_disk(folder: Path) -> Iterator[None]:
    """Name the folder in an error of the disk that names no path, and tell what to do."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise  # a network error, or one that names its path
        told = "Make room there, or choose another place with cache_folder=... The piece was not kept"
        raise OSError(error.errno, f"{error.strerror}. {told}", str(folder)) from error


def _to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder, and writes its entries with the files
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
