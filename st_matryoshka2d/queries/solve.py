"""The ridge regression of a token table, from sums over texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

if TYPE_CHECKING:
    from jaxtyping import Float

# at most so many steps, until residuals are this share of the right side
_STEPS, _ENOUGH = 60, 1e-2
_COLUMNS = 128  # solved at once, which bounds memory
# texts as long as the others, in all directions: strength of the regression of the starting point
_WEAK = 100

# the sides, whose embeddings have different means where their prompts differ
DOCUMENTS, QUERIES = 0, 1


@dataclass
class Sums:
    """Sums over texts: of counts times embeddings; of the pooled token embeddings X W with both; and of each by side."""

    words: Float[np.ndarray, "tokens hidden"]
    dim: int
    xy: Float[np.ndarray, "tokens dim"] = field(init=False)
    pooled_y: Float[np.ndarray, "hidden dim"] = field(init=False)
    squares: Float[np.ndarray, "hidden hidden"] = field(init=False)
    texts: Float[np.ndarray, " sides"] = field(init=False)
    x: Float[np.ndarray, "sides tokens"] = field(init=False)
    y: Float[np.ndarray, "sides dim"] = field(init=False)
    pooled: Float[np.ndarray, "sides hidden"] = field(init=False)

    def __post_init__(self) -> None:
        vocabulary, hidden = self.words.shape
        self.xy = np.zeros((vocabulary, self.dim), np.float32)
        self.pooled_y, self.squares = np.zeros((hidden, self.dim)), np.zeros((hidden, hidden))
        self.texts, self.x, self.y, self.pooled = (
            np.zeros((2, *size)) for size in ((), (vocabulary,), (self.dim,), (hidden,))
        )

    def add(self, rows: csr_matrix, embedded: Float[np.ndarray, "texts dim"], side: int) -> None:
        """Add texts by their counts and embeddings."""
        tokens = np.unique(rows.indices)  # a few of many tokens
        few = rows[:, tokens]
        pooled = few @ self.words[tokens]
        self.xy[tokens] += few.T @ embedded
        self.pooled_y += pooled.T @ embedded
        self.squares += pooled.T @ pooled
        self.texts[side] += len(embedded)
        self.x[side, tokens] += np.asarray(few.sum(0)).ravel()
        self.y[side] += embedded.sum(0, dtype=np.float64)
        self.pooled[side] += pooled.sum(0, dtype=np.float64)

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The tokens that occur."""
        tokens: NDArray[np.int64] = np.flatnonzero(self.x.any(0))
        return tokens

    @property
    def means(self) -> Float[np.ndarray, "sides dim"]:
        """The mean embedding of each side."""
        means: Float[np.ndarray, "sides dim"] = self.y / np.maximum(self.texts, 1)[:, None]
        return means

    def narrowed(self, tokens: NDArray[np.int64]) -> Sums:
        """Copy with these tokens alone."""
        copied = Sums(self.words[tokens], self.dim)
        copied.xy, copied.x = self.xy[tokens], self.x[:, tokens]
        copied.pooled_y, copied.squares = self.pooled_y.copy(), self.squares.copy()
        copied.texts, copied.y, copied.pooled = self.texts.copy(), self.y.copy(), self.pooled.copy()
        return copied

    def of_words(self, words: Float[np.ndarray, "tokens hidden"]) -> Float[np.ndarray, "tokens dim"]:
        """Map token embeddings by the linear map that predicts embeddings, without their mean, from pooled ones."""
        weak = _WEAK * np.trace(self.squares) / len(self.squares) / max(self.texts.sum(), 1) + np.finfo(np.float32).tiny
        right = self.pooled_y - self.pooled.T @ self.means
        linear = np.linalg.solve(self.squares + weak * np.eye(len(self.squares)), right)
        return words @ linear.astype(np.float32)

    def start(self) -> Float[np.ndarray, "tokens dim"]:
        r"""Return :math:`T_0 = W A`, towards which the table is shrunk."""
        return self.of_words(self.words)

    def right_side(self) -> Float[np.ndarray, "tokens dim"]:
        r"""Return :math:`X^T (Y - \bar Y)`, each text without the mean of its side."""
        right: Float[np.ndarray, "tokens dim"] = self.xy - (self.x.T @ self.means).astype(np.float32)
        return right


def solved(
    blocks: Sequence[csr_matrix], sums: Sums, strength: float, start: Float[np.ndarray, "tokens dim"]
) -> Float[np.ndarray, "tokens dim"]:
    r"""Solve :math:`(X^T X + \lambda I)\, T = X^T (Y - \bar Y) + \lambda T_0` by conjugate gradients."""
    scale = np.full(len(start), strength, np.float32)
    for block in blocks:
        np.add.at(scale, block.indices, np.square(block.data))
    wanted = sums.right_side() + strength * sums.start()
    table = np.empty_like(start)
    for first in range(0, start.shape[1], _COLUMNS):
        part = slice(first, first + _COLUMNS)
        table[:, part] = _gradients(blocks, wanted[:, part], strength, start[:, part].copy(), scale[:, None])
    return table


def _gradients(
    blocks: Sequence[csr_matrix],
    wanted: Float[np.ndarray, "tokens columns"],
    strength: float,
    table: Float[np.ndarray, "tokens columns"],
    scale: Float[np.ndarray, "tokens 1"],
) -> Float[np.ndarray, "tokens columns"]:
    """Take the steps for some columns, each with its own step sizes; preconditioned by the diagonal."""

    def image_of(table: Float[np.ndarray, "tokens columns"]) -> Float[np.ndarray, "tokens columns"]:
        image = strength * table
        for block in blocks:  # all texts at once would take memory in proportion to their number
            image += block.T @ (block @ table)
        return image

    residual = wanted - image_of(table)
    enough = _ENOUGH * np.linalg.norm(wanted, axis=0)
    scaled = residual / scale
    direction, product = scaled.copy(), (residual * scaled).sum(0)
    for _ in range(_STEPS):
        if (np.linalg.norm(residual, axis=0) <= enough).all():
            break
        image = image_of(direction)
        size = product / np.maximum((direction * image).sum(0), np.finfo(np.float32).tiny)
        table += size * direction
        residual -= size * image
        scaled = residual / scale
        before, product = product, (residual * scaled).sum(0)
        direction = scaled + product / np.maximum(before, np.finfo(np.float32).tiny) * direction
    return table
