"""The ridge regression of a token table, from sums over texts."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

_STEPS, _ENOUGH = 60, 1e-2  # at most so many steps, until residuals are this share of the right side
_COLUMNS = 128  # solved at once, which bounds memory
_WEAK = 1e-3  # of the mean variance: strength of the regression of the starting point


@dataclass
class Sums:
    """Sums over texts: of counts times embeddings, and of both; and of the pooled token embeddings X W with the same."""

    words: Float[np.ndarray, "tokens hidden"]
    dim: int
    texts: int = 0
    xy: Float[np.ndarray, "tokens dim"] = field(init=False)
    x: Float[np.ndarray, " tokens"] = field(init=False)
    y: Float[np.ndarray, " dim"] = field(init=False)
    pooled_y: Float[np.ndarray, "hidden dim"] = field(init=False)
    pooled: Float[np.ndarray, " hidden"] = field(init=False)
    squares: Float[np.ndarray, "hidden hidden"] = field(init=False)

    def __post_init__(self) -> None:
        vocabulary, hidden = self.words.shape
        self.xy, self.x = np.zeros((vocabulary, self.dim), np.float32), np.zeros(vocabulary)
        self.y, self.pooled_y = np.zeros(self.dim), np.zeros((hidden, self.dim))
        self.pooled, self.squares = np.zeros(hidden), np.zeros((hidden, hidden))

    def add(self, rows: csr_matrix, embedded: Float[np.ndarray, "texts dim"]) -> None:
        """Add texts by their counts and embeddings."""
        found = np.unique(rows.indices)  # a few of many tokens
        few = rows[:, found]
        pooled = few @ self.words[found]
        self.texts += len(embedded)
        self.xy[found] += few.T @ embedded
        self.x[found] += np.asarray(few.sum(0)).ravel()
        self.y += embedded.sum(0, dtype=np.float64)
        self.pooled_y += pooled.T @ embedded
        self.pooled += pooled.sum(0, dtype=np.float64)
        self.squares += pooled.T @ pooled

    @property
    def mean(self) -> Float[np.ndarray, " dim"]:
        """The mean embedding."""
        return self.y / self.texts

    def narrowed(self, tokens: NDArray[np.int64]) -> Sums:
        """Keep these tokens alone."""
        made = copy.copy(self)
        made.words, made.xy, made.x = self.words[tokens], self.xy[tokens], self.x[tokens]
        return made

    def of_words(self, words: Float[np.ndarray, "tokens hidden"]) -> Float[np.ndarray, "tokens dim"]:
        """Map token embeddings by the linear map that predicts embeddings, without their mean, from pooled ones."""
        weak = _WEAK * np.trace(self.squares) / len(self.squares) + np.finfo(np.float32).tiny
        right = self.pooled_y - np.outer(self.pooled, self.mean)
        found = np.linalg.solve(self.squares + weak * np.eye(len(self.squares)), right)
        return words @ found.astype(np.float32)

    def start(self) -> Float[np.ndarray, "tokens dim"]:
        r"""Return :math:`T_0 = W A`, towards which the table is shrunk."""
        return self.of_words(self.words)

    def right_side(self) -> Float[np.ndarray, "tokens dim"]:
        r"""Return :math:`X^T (Y - 1 \bar y^T)`."""
        return self.xy - np.outer(self.x, self.mean).astype(np.float32)


def solved(
    x: csr_matrix, sums: Sums, strength: float, start: Float[np.ndarray, "tokens dim"]
) -> Float[np.ndarray, "tokens dim"]:
    r"""Solve :math:`(X^T X + \lambda I)\, T = X^T Y + \lambda T_0` by conjugate gradients from a starting point."""
    scale = np.full(x.shape[1], strength, np.float32)
    np.add.at(scale, x.indices, np.square(x.data))
    wanted = sums.right_side() + strength * sums.start()
    table = np.empty_like(start)
    for first in range(0, start.shape[1], _COLUMNS):
        part = slice(first, first + _COLUMNS)
        table[:, part] = _gradients(x, wanted[:, part], strength, start[:, part].copy(), scale[:, None])
    return table


def _gradients(
    x: csr_matrix,
    wanted: Float[np.ndarray, "tokens columns"],
    strength: float,
    table: Float[np.ndarray, "tokens columns"],
    scale: Float[np.ndarray, "tokens 1"],
) -> Float[np.ndarray, "tokens columns"]:
    """Take the steps for some columns, each with its own step sizes; preconditioned by the diagonal."""
    transposed = x.T
    residual = wanted - (transposed @ (x @ table) + strength * table)
    enough = _ENOUGH * np.linalg.norm(wanted, axis=0)
    scaled = residual / scale
    direction, product = scaled.copy(), (residual * scaled).sum(0)
    for _ in range(_STEPS):
        if (np.linalg.norm(residual, axis=0) <= enough).all():
            break
        image = transposed @ (x @ direction) + strength * direction
        size = product / np.maximum((direction * image).sum(0), np.finfo(np.float32).tiny)
        table += size * direction
        residual -= size * image
        scaled = residual / scale
        before, product = product, (residual * scaled).sum(0)
        direction = scaled + product / np.maximum(before, np.finfo(np.float32).tiny) * direction
    return table
