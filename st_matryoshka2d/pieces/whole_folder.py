"""Folders that are there whole or not at all, whatever kills the process that makes them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

__all__ = ["made_once"]


@contextmanager
def made_once(folder: Path) -> Iterator[Path | None]:
    """Make a folder, while everybody else who wants to make it waits.

    What is written in the block goes into a folder beside it, and takes its name when the block ends without an error.

    Args:
        folder: The folder to make.

    Yields:
        Where to write; None if the folder is there already.

    Raises:
        OSError: It cannot be written, as on a full disk; nothing of it is left.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            yield None
            return
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)  # somebody was killed in here
        unfinished.mkdir()
        try:
            yield unfinished
            for path in [*unfinished.rglob("*"), unfinished]:
                _to_disk(path)
            unfinished.rename(folder)
            _to_disk(folder.parent)
        except OSError as error:
            if error.errno is None or error.filename is not None:
                raise  # of the network, or with a path already
            words = (
                f"{error.strerror}. Make room there, or choose another place with cache_folder=... The piece was not kept"
            )
            raise OSError(error.errno, words, str(folder)) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # where a folder cannot be opened, its entries are on disk with its files
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
