"""Embeddings of the documents: those that exist already, or by the model, chunk by chunk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float

_ROWS = 4096  # read from a file at once


class Existing:
    """Reads the rows of an array, or of the files that `encode_to_parquet` wrote, in order."""

    def __init__(self, embeddings: Any, name: str, dim: int) -> None:
        self.dim, self.taken = dim, 0
        if isinstance(embeddings, str | os.PathLike):
            self.where = os.fspath(embeddings)
            self._chunks = _of_files(Path(embeddings), name, dim)
        else:
            self.where = "embeddings"
            self._chunks = _of_array(embeddings, dim)
        self._rest = np.empty((0, dim), np.float32)

    def take(self, count: int) -> Float[np.ndarray, "texts dim"]:
        """Return the next rows; refuse fewer than the documents, and values that are not finite."""
        parts, have = [self._rest], len(self._rest)
        while have < count and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            have += len(chunk)
        rows = np.concatenate(parts)
        rows, self._rest = rows[:count], rows[count:]
        if len(rows) < count:
            raise ValueError(
                f"{self.where} ends after {self.taken + len(rows):,} rows, but there are more documents. Pass the "
                "embeddings of all documents, in their order."
            )
        if (broken := ~np.isfinite(rows).all(1)).any():
            raise ValueError(f"{self.where}: row {self.taken + int(broken.argmax())} is not finite.")
        self.taken += count
        return rows

    def end(self) -> None:
        """Refuse rows that belong to no document."""
        more = len(self._rest) or len(next(self._chunks, ()))
        if more:
            raise ValueError(f"{self.where} has more rows than the {self.taken:,} documents. Pass those that it embeds.")


def _of_array(embeddings: Any, dim: int) -> Iterator[Float[np.ndarray, "texts dim"]]:
    rows = embeddings.cpu() if isinstance(embeddings, torch.Tensor) else np.asanyarray(embeddings)  # which may be a file
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise ValueError(f"embeddings must be (documents, {dim}), got {tuple(rows.shape)}.")
    for start in range(0, len(rows), _ROWS):
        chunk = rows[start : start + _ROWS]
        yield (chunk.float().numpy() if isinstance(chunk, torch.Tensor) else np.asarray(chunk, dtype=np.float32))


def _of_files(path: Path, name: str, dim: int) -> Iterator[Float[np.ndarray, "texts dim"]]:
    files = sorted(path.glob("[!.]*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise FileNotFoundError(f"There are no Parquet files at {path}. `encode_to_parquet` writes them.")
    column = _column(pq.read_schema(files[0]), name, dim, files[0])
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(_ROWS, columns=[column]):
            values = batch.column(0)
            yield np.asarray(values.flatten(), dtype=np.float32).reshape(len(values), dim)


def _column(schema: pa.Schema, name: str, dim: int, file: Path) -> str:
    """Return the column of the full size: by its name, or the only one that is as wide."""
    wide = [field.name for field in schema if getattr(field.type, "list_size", None) == dim]
    found = [name] if name in wide else wide
    if len(found) != 1:
        raise ValueError(
            f"{file} must have one column of embeddings of {dim} dims, such as {name!r}; its columns are {schema.names}. "
            "Write it with `encode_to_parquet`."
        )
    return found[0]


def chunks_of(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    """Yield lists of texts."""
    return iter(lambda: list(islice(texts, size)), [])
