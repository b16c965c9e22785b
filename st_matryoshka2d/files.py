"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError


def replace_file(path: str | os.PathLike[str], write_to: Callable[[Path], object]) -> None:
    """Write a file so that whoever reads it, at any moment, finds the old content or the new one, whole."""
    wanted = Path(path)
    with naming_the_file(wanted):
        wanted.parent.mkdir(parents=True, exist_ok=True)
        # Not a file of `tempfile`, which nobody but its owner may read.
        part = wanted.with_name(f".{uuid4().hex}.part{wanted.suffix}")
        try:
            write_to(part)
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(wanted)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def naming_the_file(path: Path) -> Iterator[None]:
    """Say which file could not be written, such as where the disk is full: the system says it of no open file."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = getattr(error, "errno", None)
        if number is None:
            raise OSError(f"{path} could not be written: {error}") from error
        raise OSError(number, f"{os.strerror(number)}, so this could not be written", str(path)) from error


def check_is_file(path: str | os.PathLike[str]) -> None:
    """Refuse what cannot be read because it is missing, or a folder."""
    if not Path(path).exists():
        raise FileNotFoundError(f"There is no file {os.fspath(path)!r} in {Path.cwd()}.")
    if Path(path).is_dir():
        raise ValueError(f"{os.fspath(path)!r} is a folder; name the file that was saved.")
