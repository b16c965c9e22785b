"""Copy or download some blocks of a model, without reading the other blocks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.utils import WeakFileLock, build_hf_headers  # type: ignore[attr-defined]  # lazy

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.hub.checkpoint import Checkpoint
from st_matryoshka2d.hub.piece import piece_of, telling_of_a_full_disk
from st_matryoshka2d.hub.remote_file import RemoteFile
from st_matryoshka2d.model.cut_config import Cut

_MOST = 2**22  # bytes in memory at once


@dataclass(frozen=True)
class LocalFile:
    """A file of weights in a folder."""

    path: str

    @property
    def size(self) -> int:
        """Its bytes."""
        return Path(self.path).stat().st_size

    def parts(self, start: int, stop: int) -> Iterator[bytes]:
        """Read the bytes from `start` up to `stop`."""
        with Path(self.path).open("rb") as file:
            file.seek(start)
            while part := file.read(min(_MOST, stop - start)):
                start += len(part)
                yield part


def copy_piece(checkpoint: Checkpoint, cut: Cut, allow_bin: bool, folder: Path) -> bool:
    """Copy the blocks of a cut, and all but the blocks, as a complete checkpoint; False if there is no list of them."""
    # transformers loads the layers of a file under their own numbers alone, so those that move up
    # need a file of their own.
    weights = checkpoint.root / checkpoint.transformer
    piece = piece_of(checkpoint, cut, lambda file: LocalFile(str(weights / file)))
    if piece is not None:
        with telling_of_a_full_disk(folder, "choose another place for temporary files, with TMPDIR"):
            piece.write(folder, allow_bin, show_progress_bar=False)
    return piece is not None


def fetch_piece(checkpoint: Checkpoint, cut: Cut, allow_bin: bool = False) -> Path | None:
    """Download the blocks of a cut, and all but the blocks, as a complete checkpoint; None if there is no list of them."""
    piece = piece_of(checkpoint, cut, lambda file: _remote_file(checkpoint, file))
    if piece is None:
        return None
    folder = checkpoint.piece_folder(cut.kept)
    with made_once(folder) as unfinished:
        if unfinished is not None:
            piece.write(unfinished, allow_bin, show_progress_bar=True)
    return folder


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
            with telling_of_a_full_disk(folder, "choose another place with cache_folder=... The piece was not kept"):
                yield unfinished
                for path in [*unfinished.rglob("*"), unfinished]:
                    _to_disk(path)
                unfinished.rename(folder)
                _to_disk(folder.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _remote_file(checkpoint: Checkpoint, file: str) -> RemoteFile:
    """Find a file of the Transformer on the Hub, with one request."""
    path, token = checkpoint.within_transformer(file), checkpoint.token
    url = hf_hub_url(checkpoint.name, path, revision=checkpoint.commit)
    size = get_hf_file_metadata(url, token=token).size
    if size is None:
        raise UsageError(f"{path}: the server does not report the size of the file.")
    return RemoteFile(path, url, build_hf_headers(token=token, library_name="st_matryoshka2d"), size)


def _to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder, and writes its entries with the files
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
