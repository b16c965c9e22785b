"""Embeddings by text, in memory and on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.atomic import replace_file

_DIGEST = 16  # bytes


class Memo:
    """Embeddings by text, appended in chunks; with a folder, each chunk is also saved there atomically."""

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
                raise UsageError(f"{path} cannot be read. Delete it to have its texts embedded again. {error}") from error

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self._chunks[0].shape[1])

    def missing(self, texts: Iterable[str]) -> list[str]:
        """List the texts that have no embedding yet, without repetitions."""
        return [text for text in dict.fromkeys(texts) if _digest(text) not in self._rows]

    def add(self, texts: Sequence[str], embeddings: NDArray[np.floating]) -> None:
        """Append embeddings (texts, columns)."""
        digests = [_digest(text) for text in texts]
        if self._folder is not None:
            texts_as_bytes = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, _DIGEST)
            tensors = {"texts": texts_as_bytes, "embeddings": np.ascontiguousarray(embeddings)}
            replace_file(self._folder / f"{self._files:06}.safetensors", lambda part: save_file(tensors, part))
        self._append(digests, embeddings)

    def rows(self, texts: Iterable[str]) -> list[int]:
        """Look up the rows of texts; raise a KeyError if one has no embedding."""
        return [self._rows[_digest(text)] for text in texts]

    def take(self, rows: Sequence[int], columns: slice) -> NDArray[np.floating]:
        """Select rows and columns of the embeddings."""
        if len(self._chunks) != 1:
            self._chunks = [np.concatenate(self._chunks)]
        selected: NDArray[np.floating] = self._chunks[0][:, columns][rows]
        return selected

    def _append(self, digests: Sequence[bytes], embeddings: NDArray[np.floating]) -> None:
        # A text may be in several files, because two runs may write at the same time.
        start = sum(map(len, self._chunks))
        self._rows.update({digest: row for row, digest in enumerate(digests, start)})
        self._chunks.append(embeddings)
        self._files += 1


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest()
