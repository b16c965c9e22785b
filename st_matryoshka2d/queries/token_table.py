"""Embed queries by a saved token table, with NumPy and `tokenizers` alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.queries.saved_table import SavedTable, saved_table
from st_matryoshka2d.sizes import within
from st_matryoshka2d.texts import is_missing, strings

if TYPE_CHECKING:
    from jaxtyping import Float

_BATCH = 1024  # texts that are tokenized at once, and rows that are added at once
_SHORTEST = 1e-12  # sentence-transformers divides by this if a vector is shorter


class TokenTable:
    """A saved token table, which embeds queries without torch, and as sentence-transformers does.

    For processes that must answer at once, or have little memory: functions in a cloud, command
    lines, many small workers. It needs NumPy and `tokenizers` alone. The file of the table is mapped
    into memory, so only the rows of tokens that texts contain are read.

    A table is for queries. Documents are embedded by the whole model, so there is no
    `encode_document`: embed them where torch is, with `fitted.encode_document`, and save the vectors
    beside the table.

    Attributes:
        tokenizer: Of the `tokenizers` library; it adds no special tokens.
        rows: One row per token, (tokens, dim), mapped into memory.
        truncate_dim: Dimensions that are kept of an embedding, or None for all.

    Example:
        >>> from st_matryoshka2d import TokenTable, fit_queries, truncate
        >>> documents = [f"{thing}, part {part}" for thing in ("a cat", "rain", "a piano") for part in range(40)]
        >>> fitted = fit_queries(model, documents)
        >>> truncate(fitted, num_layers=0).save_pretrained("queries")  # once, where torch is

        >>> table = TokenTable.load("queries")
        >>> table.encode_query("the piano").shape
        (384,)
        >>> index = model.encode_document(documents)  # in practice, from a file
        >>> documents[(index @ table.encode_query("the piano")).argmax()].split(",")[0]
        'a piano'
    """

    def __init__(self, saved: SavedTable, truncate_dim: int | None = None) -> None:
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(saved.tokenizer))
        self.tokenizer.no_padding()
        self.rows = saved.rows
        self._saved = saved
        self.truncate_dim = self._dim(saved.truncate_dim if truncate_dim is None else truncate_dim)
        if (most := self.tokenizer.get_vocab_size()) > len(self.rows):
            raise UsageError(
                f"{saved.tokenizer} has {most} tokens, but the table beside it only {len(self.rows)} rows: they are not of "
                "one model. Save the table again, with `save_pretrained`."
            )

    def __repr__(self) -> str:
        tokens, dim = self.rows.shape
        kept = f"{dim}" if self.truncate_dim is None else f"{self.truncate_dim} of {dim}"
        return f"TokenTable of {str(self._saved.tokenizer.parent)!r}: {tokens:,} tokens x {kept} dimensions"

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, truncate_dim: int | None = None) -> TokenTable:
        """Open a saved table.

        Args:
            folder: What `truncate(fitted, num_layers=0).save_pretrained(folder)` wrote, or
                `asymmetric(fitted, query=0).save_pretrained(folder)`, of which the side of queries
                is read. Rows may be float32 or float16; embeddings are computed in float32.
            truncate_dim: Keep the first coordinates, as in sentence-transformers: not scaled to
                length 1 again. None: as the folder says.

        Raises:
            ValueError: The folder is not a table, is broken, or has fewer dimensions.

        Example:
            >>> from st_matryoshka2d import TokenTable
            >>> try:
            ...     TokenTable.load("no such folder")
            ... except ValueError as error:
            ...     print(str(error)[:71])
            no such folder is no saved token table: no such folder is not a folder.
        """
        return cls(saved_table(Path(folder)), truncate_dim)

    def encode_query(
        self, texts: str | Iterable[str], *, truncate_dim: int | None = None
    ) -> Float[np.ndarray, "*texts dim"]:
        """Embed queries: the mean of the rows of their tokens, of length 1 if the model's embeddings are.

        Args:
            texts: One query, or a list of them.
            truncate_dim: Keep the first coordinates; None: as the table was loaded.

        Returns:
            Float32: (dim,) for one query, (texts, dim) for a list. A text without tokens is a zero
            vector.

        Raises:
            TypeError: A text is not a string.
            ValueError: There are fewer dimensions, or a text cannot be encoded in UTF-8.

        Example:
            >>> from st_matryoshka2d import TokenTable, fit_queries, truncate
            >>> fitted = fit_queries(model, [f"rain in May, day {day}" for day in range(120)])
            >>> truncate(fitted, num_layers=0).save_pretrained("queries")
            >>> TokenTable.load("queries").encode_query(["rain", "sun"], truncate_dim=64).shape
            (2, 64)
        """
        return self._embed(texts, self._saved.query_prompt, truncate_dim)

    def encode(self, texts: str | Iterable[str], *, truncate_dim: int | None = None) -> Float[np.ndarray, "*texts dim"]:
        """Embed texts as `encode` of the saved model does; of an asymmetric one, as that of its query side.

        The same as `encode_query`, for programs that call this name, unless the model has a prompt
        for queries.

        Args:
            texts: One text, or a list of them.
            truncate_dim: Keep the first coordinates; None: as the table was loaded.

        Returns:
            Float32: (dim,) for one text, (texts, dim) for a list.

        Raises:
            TypeError: A text is not a string.
            ValueError: There are fewer dimensions, or a text cannot be encoded in UTF-8.
        """
        return self._embed(texts, self._saved.prompt, truncate_dim)

    def _embed(self, texts: str | Iterable[str], prompt: str, truncate_dim: int | None) -> Float[np.ndarray, "*texts dim"]:
        listed = strings([texts] if isinstance(texts, str) or is_missing(texts) else texts)
        dim = self.truncate_dim if truncate_dim is None else self._dim(truncate_dim)
        embedded = np.zeros((len(listed), self.rows.shape[1] if dim is None else dim), np.float32)
        for start in range(0, len(listed), _BATCH):
            prompted = [prompt + text for text in listed[start : start + _BATCH]]
            encoded = self.tokenizer.encode_batch_fast(prompted, add_special_tokens=False)
            for place, text in enumerate(encoded, start):
                embedded[place] = self._pooled(text.ids)[:dim]
        return embedded[0] if isinstance(texts, str) else embedded

    def _pooled(self, tokens: Sequence[int]) -> Float[np.ndarray, "dim"]:
        """Return the mean of rows, of length 1 where embeddings are; zeros for no token."""
        total = np.zeros(self.rows.shape[1], np.float32)
        for start in range(0, len(tokens), _BATCH):
            rows = self.rows[tokens[start : start + _BATCH]].astype(np.float32)
            rows[0] += total  # one after the other, as torch adds: in other orders, long texts round otherwise
            total = rows.sum(0)
        mean = total / max(1, len(tokens))
        return mean / max(float(np.linalg.norm(mean)), _SHORTEST) if self._saved.is_normalized else mean

    def _dim(self, dim: int | None) -> int | None:
        return None if dim is None else within(dim, self.rows.shape[1], "truncate_dim")
