"""Read embeddings that exist already, chunk by chunk: an array, a file of one, or Parquet files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.texts import require_finite

if TYPE_CHECKING:
    from jaxtyping import Float

_ROWS = 4096  # read from a file at once
_SAME = 0.98  # the least cosine: quantized embeddings differ a little
CHECKED = 8  # texts of a chunk that are compared with what the model makes of them

Embed = Callable[[list[str]], NDArray[np.floating]]  # (texts, dim)


class Existing:
    """Reads the rows of an array or of files in order."""

    def __init__(self, embeddings: Any, texts: str, name: str | None = None, dim: int | None = None) -> None:
        """Name the texts that they are of, and the size and dims that they must have; None for the widest."""
        self.texts, self.taken = texts, 0
        path = Path(embeddings) if isinstance(embeddings, str | os.PathLike) else None
        self.where = "embeddings" if path is None else str(path)
        if path is not None and path.suffix != ".npy":
            files = _files(path)
            column, self.dim = _column(files[0], name, dim)
            self._chunks = _of_files(files, column, self.dim)
        else:
            rows = np.load(path, mmap_mode="r") if path is not None else embeddings
            rows = rows.detach().cpu() if isinstance(rows, torch.Tensor) else np.asanyarray(rows)
            if rows.ndim != 2 or (dim or rows.shape[1]) != rows.shape[1]:
                expected = f"({texts}, {dim or 'dims'})"
                raise UsageError(f"{self.where} must be {expected}, got {tuple(rows.shape)}.")
            self.dim, self._chunks = rows.shape[1], _of_array(rows)
        self._rest = np.empty((0, self.dim), np.float32)

    def take(self, count: int) -> Float[np.ndarray, "texts dim"]:
        """Return the next rows; refuse fewer than the documents, and values that are not finite."""
        parts, have = [self._rest], len(self._rest)
        while have < count and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            have += len(chunk)
        rows = np.concatenate(parts)
        rows, self._rest = rows[:count], rows[count:]
        if len(rows) < count:
            raise UsageError(
                f"{self.where} ends after {self.taken + len(rows):,} rows, but there are more {self.texts}. Pass the "
                f"embeddings of all {self.texts}, in their order."
            )
        if (broken := ~np.isfinite(rows).all(1)).any():
            raise UsageError(f"{self.where}: row {self.taken + int(broken.argmax())} is not finite.")
        self.taken += count
        return rows

    def require_same(self, texts: Sequence[tuple[int, str]], given: Float[np.ndarray, "texts dim"], embed: Embed) -> None:
        """Refuse rows that the model, with which `embed` embeds, does not make of these texts; each has its row number."""
        if not texts:
            return
        own = embed([text for _, text in texts])
        require_finite(own, [text for _, text in texts], [f"documents[{place}]" for place, _ in texts])
        lengths = np.linalg.norm(given, axis=1) * np.linalg.norm(own, axis=1)
        cosines = (given * own).sum(1) / np.maximum(lengths, np.finfo(np.float32).tiny)
        worst = int(cosines.argmin())
        if cosines[worst] < _SAME:
            place, text = texts[worst]
            raise UsageError(
                f"{self.where}: row {place} is not what this model makes of the document {text[:60]!r} (cosine "
                f"{cosines[worst]:.2f}). Pass embeddings by `model.encode_document`, in the order of the documents; those "
                "of another model, another prompt or a cut do not fit. To search those of the whole model by a healed cut, "
                "evaluate asymmetric(model, query=healed)."
            )

    def end(self) -> None:
        """Refuse rows that belong to no document."""
        more = len(self._rest) or len(next(self._chunks, ()))
        if more:
            raise UsageError(f"{self.where} has more rows than the {self.taken:,} {self.texts}. Pass those that it embeds.")


def _of_array(rows: Any) -> Iterator[Float[np.ndarray, "texts dim"]]:
    for start in range(0, len(rows), _ROWS):
        chunk = rows[start : start + _ROWS]
        yield (chunk.float().numpy() if isinstance(chunk, torch.Tensor) else np.asarray(chunk, dtype=np.float32))


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("[!.]*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise FileNotFoundError(f"There are no Parquet files at {path}. `encode_to_parquet` writes them.")
    return files


def _of_files(files: Iterable[Path], column: str, dim: int) -> Iterator[Float[np.ndarray, "texts dim"]]:
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(_ROWS, columns=[column]):
            values = batch.column(0)
            if pc.any(pc.not_equal(pc.fill_null(pc.list_value_length(values), 0), dim)).as_py():
                raise UsageError(f"{file}, column {column!r}: expected {dim} dims in each row, but some have more or fewer.")
            yield np.asarray(values.flatten(), dtype=np.float32).reshape(len(values), dim)


def _column(file: Path, name: str | None, dim: int | None) -> tuple[str, int]:
    """Return the column of the full size, and its dims: by its name, or the only one that wide."""
    widths = _widths(file)
    width = dim or max(widths.values(), default=0)
    wide = [column for column in widths if widths[column] == width]
    column, *others = [name] if name in wide else wide or [""]
    if not column or others:
        asked = f"of {dim} dims, such as {name!r}" if dim else "that is wider than all others"
        raise UsageError(
            f"{file} must have one column of embeddings {asked}; its columns of numbers have these "
            f"dims: {widths}. `encode_to_parquet` writes such files."
        )
    return column, width


def _widths(file: Path) -> dict[str, int]:
    """Return the dims of each column of embeddings, as its first row has them."""
    try:
        first = next(pq.ParquetFile(file).iter_batches(1), None)
    except pa.ArrowInvalid as error:
        raise UsageError(f"{file} cannot be read as Parquet: {error}") from error
    cells = {} if first is None else first.to_pylist()[0]
    lists = {name: cell for name, cell in cells.items() if isinstance(cell, list) and cell}
    return {name: len(cell) for name, cell in lists.items() if isinstance(cell[0], float)}
