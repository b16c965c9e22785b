"""Texts and their embeddings: in memory, and on disk where a killed run is to go on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from st_matryoshka2d.evaluation.grid.files import replace_file

__all__ = ["Memo"]

_DIGEST = 16


class Memo:
    """Embeddings by text, appended to in chunks.

    Args:
        folder: Where each chunk is also written, in a file that is whole or absent; what is there already is read. None
            keeps everything in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._rows: dict[bytes, int] = {}
        self._chunks: list[NDArray[np.floating]] = []
        self._files = 0
        for path in sorted(folder.glob("[0-9]*.safetensors")) if folder is not None else ():
            try:
                with safe_open(path, framework="numpy") as chunk:
                    self._append([row.tobytes() for row in chunk.get_tensor("texts")], chunk.get_tensor("embeddings"))
            except SafetensorError as error:
                raise ValueError(f"{path} is broken; delete it, and its texts are embedded again. {error}") from error

    @property
    def width(self) -> int:
        """Columns of the embeddings."""
        return int(self._chunks[0].shape[1])

    def missing(self, texts: Iterable[str]) -> list[str]:
        """Those that have no embedding yet, each once.

        Args:
            texts: Any texts, repeated or not.
        """
        return [text for text in dict.fromkeys(texts) if _digest(text) not in self._rows]

    def add(self, texts: Sequence[str], embeddings: NDArray[np.floating], *, write: bool = True) -> None:
        """Append texts that are missing.

        Args:
            texts: Without repetition.
            embeddings: (texts, depths x full dim).
            write: False leaves the file to another process.
        """
        digests = [_digest(text) for text in texts]
        if self._folder is not None and write:
            tensors = {
                "texts": np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, _DIGEST),
                "embeddings": np.ascontiguousarray(embeddings),
            }
            replace_file(self._folder / f"{self._files:06}.safetensors", lambda part: save_file(tensors, part))
        self._append(digests, embeddings)

    def rows(self, texts: Iterable[str]) -> list[int]:
        """Where the embeddings of texts are.

        Args:
            texts: Any texts, repeated or not.

        Raises:
            KeyError: A text has no embedding.
        """
        return [self._rows[_digest(text)] for text in texts]

    def take(self, rows: Sequence[int], columns: slice) -> NDArray[np.floating]:
        """Some columns of some embeddings, (rows, columns).

        Args:
            rows: Which embeddings.
            columns: Which columns.
        """
        if len(self._chunks) != 1:
            self._chunks = [np.concatenate(self._chunks)]
        of_columns: NDArray[np.floating] = self._chunks[0][:, columns][rows]
        return of_columns

    def _append(self, digests: Sequence[bytes], embeddings: NDArray[np.floating]) -> None:
        # Rows, not texts: two runs at once may each have written the same text.
        start = sum(map(len, self._chunks))
        self._rows.update({digest: row for row, digest in enumerate(digests, start)})
        self._chunks.append(embeddings)
        self._files += 1


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest()
