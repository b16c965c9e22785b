"""Write files atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError

from st_matryoshka2d.errors import UsageError


def replace_file(path: str | os.PathLike[str], write_to: Callable[[Path], object]) -> None:
    """Write a file atomically: readers find the old content or the new one, never a part of it."""
    wanted = Path(path)
    with naming_the_file(wanted):
        wanted.parent.mkdir(parents=True, exist_ok=True)
        part = wanted.with_name(f".{uuid4().hex}.part{wanted.suffix}")
        try:
            part.touch()
            mode = part.stat().st_mode
            write_to(part)
            _set_mode(part, mode)
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(wanted)
        finally:
            part.unlink(missing_ok=True)


def share_weights(folder: str | os.PathLike[str]) -> None:
    """Give the weights that a library saved in a folder the mode that the umask gives to new files."""
    place = Path(folder)
    probe = place / f".{uuid4().hex}.part"
    try:
        probe.touch()
        mode = probe.stat().st_mode
    finally:
        probe.unlink(missing_ok=True)
    for path in place.rglob("*.safetensors"):
        _set_mode(path, mode)


def _set_mode(path: Path, mode: int) -> None:
    """Undo the mode of `tempfile`, which safetensors uses: only the owner may read such a file."""
    if path.stat().st_mode != mode:  # a file system without modes may refuse a change
        path.chmod(mode)


def check_writable_file(path: str | os.PathLike[str]) -> None:
    """Refuse a file that cannot be written, before the work whose result it will hold."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{os.fspath(path)!r} is a folder; name a file in it.")
    check_writable_folder(Path(path).parent)


def check_writable_folder(folder: str | os.PathLike[str]) -> None:
    """Create a folder and, for a moment, a file in it; permission bits would not tell of a full or read-only disk."""
    place = Path(folder)
    with naming_the_file(place):
        place.mkdir(parents=True, exist_ok=True)
        # A kill leaves nothing behind: the file has no name where the system allows it.
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(4096))  # a full disk still takes an empty file
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def naming_the_file(path: Path) -> Iterator[None]:
    """Name the file in errors such as a full disk, for which the system does not name an open file."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = getattr(error, "errno", None)
        if number is None:
            raise OSError(f"{path} could not be written: {error}") from error
        raise OSError(number, f"{os.strerror(number)}; could not write", str(path)) from error


def check_is_file(path: str | os.PathLike[str]) -> None:
    """Refuse a path that does not exist or is a folder."""
    if not Path(path).exists():
        raise FileNotFoundError(f"There is no file {os.fspath(path)!r} in {Path.cwd()}.")
    if Path(path).is_dir():
        raise UsageError(f"{os.fspath(path)!r} is a folder; name the file that was saved.")
