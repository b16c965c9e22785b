"""Copy some blocks of a model in a folder to another folder, without reading the other blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedConfig

from st_matryoshka2d.hub.checkpoint import Checkpoint
from st_matryoshka2d.hub.piece import piece_of, telling_of_a_full_disk

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


def copy_piece(checkpoint: Checkpoint, config: PreTrainedConfig, num_layers: int, allow_bin: bool, folder: Path) -> bool:
    """Copy the blocks of a depth, and all but the blocks, as a complete checkpoint; False if there is no list of them."""
    # transformers loads the layers of a file under their own numbers alone, so those that move up
    # need a file of their own.
    weights = checkpoint.root / checkpoint.transformer
    piece = piece_of(checkpoint, config, num_layers, lambda file: LocalFile(str(weights / file)))
    if piece is not None:
        with telling_of_a_full_disk(folder, "choose another place for temporary files, with TMPDIR"):
            piece.write(folder, allow_bin, show_progress_bar=False)
    return piece is not None
