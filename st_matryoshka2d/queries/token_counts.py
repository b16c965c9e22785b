"""Read documents and queries once: embed them, or take their embeddings, and count their tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack
from tokenizers import Tokenizer

from st_matryoshka2d.encoding.existing_embeddings import CHECKED, Existing
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.sides import DOCUMENT, QUERY, prompt_of
from st_matryoshka2d.queries.solve import DOCUMENTS, QUERIES, Sums
from st_matryoshka2d.queries.stand_ins import StandIns
from st_matryoshka2d.texts import LeftOut, checked_text, require_finite, rows_of

if TYPE_CHECKING:
    from jaxtyping import Float

_CHUNK = 4096  # documents that are embedded at once
_JOINED = 16  # chunks in a block of the fit: products with many small blocks are slow

Embed = Callable[..., np.ndarray]  # of texts, with a bar or without; (texts, dim)


@dataclass
class TokenCounts:
    """Token counts and sums of the texts that a table is fitted on."""

    tokenizer: Tokenizer
    longest: int | None  # tokens of a text that the whole model reads
    sums: Sums
    side: int = QUERIES  # whose mean queries lose: that of the documents if both have the same prompt
    blocks: list[csr_matrix] = field(default_factory=list)  # counts, (texts, vocabulary)

    @classmethod
    def of(cls, pipeline: Pipeline) -> TokenCounts:
        """Start without texts; refuse a model that has no fast tokenizer."""
        model = pipeline.model
        fast = getattr(model.tokenizer, "backend_tokenizer", None)
        if not isinstance(fast, Tokenizer):
            raise UsageError(
                "A table needs a fast tokenizer, of the `tokenizers` library, but the model has a "
                f"{type(model.tokenizer).__name__}."
            )
        tokenizer = table_tokenizer(fast)
        network: Any = pipeline.transformer.model
        words = network.get_input_embeddings().weight.detach().float().cpu().numpy()
        vocabulary = tokenizer.get_vocab_size()
        words = np.pad(words[:vocabulary], ((0, max(0, vocabulary - len(words))), (0, 0)))
        sums = Sums(words, pipeline.full.dim)
        of_queries = DOCUMENTS if prompt_of(model, DOCUMENT) == prompt_of(model, QUERY) else QUERIES
        return cls(tokenizer, model.max_seq_length, sums, of_queries)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, as many of each as the whole model reads."""
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [text.ids[: self.longest] for text in encoded]

    def add(self, tokens: Sequence[Sequence[int]], embedded: Float[np.ndarray, "texts dim"], side: int) -> None:
        """Add texts to the fit."""
        rows = counts(tokens, len(self.sums.words))
        self.sums.add(rows, embedded, side)
        self.blocks.append(rows)

    def narrowed(self, others: Sequence[Sequence[int]]) -> tuple[TokenCounts, NDArray[np.int64]]:
        """Copy with the tokens that occur here or in these others alone; also return their ids."""
        ids = np.fromiter((token for tokens in others for token in tokens), dtype=np.int64)
        occur = np.union1d(self.sums.tokens, ids)
        joined = (self.blocks[at : at + _JOINED] for at in range(0, len(self.blocks), _JOINED))
        blocks = [vstack(chunks, "csr")[:, occur] for chunks in joined]
        sums = self.sums.narrowed(occur)
        return TokenCounts(self.tokenizer, self.longest, sums, self.side, blocks), occur


def counts(tokens: Sequence[Sequence[int]], vocabulary: int) -> csr_matrix:
    """Count the tokens of each text: square roots, of unit length; (texts, vocabulary)."""
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    flat = (token for of_text in tokens for token in of_text)
    ids = np.fromiter(flat, dtype=np.int32, count=int(lengths.sum()))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ones = np.ones(len(ids), dtype=np.float32)
    rows = csr_matrix((ones, ids, starts), shape=(len(tokens), vocabulary))
    rows.sum_duplicates()
    # The norm of square roots is the root of the number of tokens.
    rows.data = np.sqrt(rows.data / np.repeat(lengths, np.diff(rows.indptr))).astype(np.float32)
    return rows


def table_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Copy a tokenizer without special tokens, truncation and padding; tokens keep their ids."""
    settings = json.loads(tokenizer.to_str())
    settings |= {"truncation": None, "padding": None, "post_processor": None}
    # A special token that is written out in a text is text there.
    settings["added_tokens"] = [token for token in settings["added_tokens"] if not token["special"]]
    return Tokenizer.from_str(json.dumps(settings))


def add_documents(
    counted: TokenCounts, documents: Iterable[str], embed: Embed, existing: Existing | None, stand_ins: StandIns, bar: Any
) -> LeftOut:
    """Add all documents to the fit, and draw stand-ins for queries from them."""
    left_out = LeftOut("documents")
    rows = enumerate(rows_of(documents, "documents"))
    while chunk := list(islice(rows, _CHUNK)):
        filled = [(place, row) for place, row in chunk if not left_out.lacks(row)]
        texts = [checked_text(row, f"documents[{place}]") for place, row in filled]
        if existing is None:
            embedded = embed(texts, bar)
            require_finite(embedded, texts, [f"documents[{place}]" for place, _ in filled])
        else:
            embedded = existing.take(len(chunk))[[place - chunk[0][0] for place, _ in filled]]
            few = slice(None, None, max(1, len(filled) // CHECKED))
            existing.require_same(filled[few], embedded[few], embed)
        if texts:
            counted.add(counted.tokens(texts), embedded, DOCUMENTS)
        for text, row in zip(texts, embedded, strict=True):
            stand_ins.add(text, row)
        bar.update(len(chunk) - (len(texts) if existing is None else 0))
    if existing is not None:
        existing.end()
    return left_out


def each_once(queries: Iterable[str] | None, name: str) -> tuple[dict[str, int], LeftOut]:
    """Return each query once, without empty ones, and its first row."""
    left_out = LeftOut(name)
    first: dict[str, int] = {}
    for at, row in enumerate(rows_of(() if queries is None else queries, name)):
        if not left_out.lacks(row):
            first.setdefault(checked_text(row, f"{name}[{at}]"), at)
    return first, left_out
