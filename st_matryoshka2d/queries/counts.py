"""The tokens of texts as rows of a sparse matrix, which lies in temporary files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

_CHUNK = 2**20  # tokens in memory
_ROWS = 2**16  # texts of a block


class Counts:
    """Square roots of the token counts of each text, of unit length: (texts, vocabulary)."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self._values, self._tokens = folder / "values", folder / "tokens"
        self._ends: list[NDArray[np.int64]] = [np.zeros(1, dtype=np.int64)]

    def add(self, tokens: Sequence[Sequence[int]]) -> csr_matrix:
        """Append texts by their token ids; return their rows."""
        rows = rows_of_counts(tokens, self.vocabulary)
        for path, values in ((self._values, rows.data), (self._tokens, rows.indices)):
            with path.open("ab") as file:
                values.tofile(file)
        self._ends.append(self._ends[-1][-1] + rows.indptr[1:].astype(np.int64))
        return rows

    def renumber(self, found: NDArray[np.int64]) -> None:
        """Keep these token ids alone, which are all that occur, under their places in the order."""
        tokens = np.memmap(self._tokens, np.int32, "r+") if self._tokens.exists() else np.empty(0, np.int32)
        for start in range(0, len(tokens), _CHUNK):
            part = slice(start, start + _CHUNK)
            tokens[part] = np.searchsorted(found, tokens[part])
        self.vocabulary = len(found)

    def blocks(self) -> list[csr_matrix]:
        """Return all rows, some thousands at a time, which are read from the files when they are needed."""
        ends = np.concatenate(self._ends)
        kinds = ((self._values, np.float32), (self._tokens, np.int32))
        values, tokens = (np.memmap(path, kind, "r") if ends[-1] else np.empty(0, kind) for path, kind in kinds)
        found = []
        for first in range(0, len(ends) - 1, _ROWS):
            bounds = ends[first : first + _ROWS + 1]
            part = slice(bounds[0], bounds[-1])
            shape = (len(bounds) - 1, self.vocabulary)
            found.append(csr_matrix((values[part], tokens[part], bounds - bounds[0]), shape=shape, copy=False))
        return found


def rows_of_counts(tokens: Sequence[Sequence[int]], vocabulary: int) -> csr_matrix:
    """Compute the rows of texts by their token ids."""
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    ids = np.fromiter((token for of_text in tokens for token in of_text), dtype=np.int32, count=int(lengths.sum()))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rows = csr_matrix((np.ones(len(ids), dtype=np.float32), ids, starts), shape=(len(tokens), vocabulary))
    rows.sum_duplicates()
    # The norm of square roots is the root of the number of tokens.
    rows.data = np.sqrt(rows.data / np.repeat(lengths, np.diff(rows.indptr))).astype(np.float32)
    return rows
