"""Read documents and queries once: embed them, or take their embeddings, and sum up what the fit of a table needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from tokenizers import Tokenizer

from st_matryoshka2d.encoding.check_texts import checked_text, rows_of
from st_matryoshka2d.encoding.existing import Existing
from st_matryoshka2d.encoding.left_out import LeftOut
from st_matryoshka2d.queries.counts import Counts
from st_matryoshka2d.queries.solve import DOCUMENTS, QUERIES, Sums
from st_matryoshka2d.queries.stand_ins import StandIns

_CHUNK = 4096  # documents in memory
_CHECKED = 8  # documents of a chunk whose existing embeddings are compared with the model's
_SAME = 0.98  # the least cosine: quantized embeddings differ a little

Embed = Callable[[Sequence[str]], Float[np.ndarray, "texts dim"]]


@dataclass
class Gathered:
    """Token counts and sums of the texts that a table is fitted on."""

    tokenizer: Tokenizer
    longest: int | None  # tokens of a text that the whole model reads
    counts: Counts
    sums: Sums
    side: int = QUERIES  # of queries: that of the documents if both have the same prompt

    def add(self, tokens: Sequence[Sequence[int]], embedded: Float[np.ndarray, "texts dim"], side: int) -> None:
        """Add texts to the fit."""
        self.sums.add(self.counts.add(tokens), embedded, side)

    def narrowed(self, others: Sequence[Sequence[int]]) -> tuple[Gathered, NDArray[np.int64]]:
        """Renumber the tokens that occur in the texts and in these others; also return their former ids."""
        ids = np.fromiter((token for tokens in others for token in tokens), dtype=np.int64)
        found = np.union1d(self.sums.found, ids)
        self.counts.renumber(found)
        return replace(self, sums=self.sums.narrowed(found)), found


def tokens_of(tokenizer: Tokenizer, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
    """Return the token ids of texts, at most so many of each."""
    return [encoded.ids[:most] for encoded in tokenizer.encode_batch(list(texts), add_special_tokens=False)]


def add_documents(
    gathered: Gathered, documents: Iterable[str], embed: Embed, existing: Existing | None, stand_ins: StandIns, bar: Any
) -> LeftOut:
    """Add all documents to the fit, and draw stand-ins for queries from them."""
    left_out = LeftOut("documents")
    rows = enumerate(rows_of(documents, "documents"))
    while chunk := list(islice(rows, _CHUNK)):
        filled = [(place, row) for place, row in chunk if not left_out.lacks(row)]
        texts = [checked_text(row, f"documents[{place}]") for place, row in filled]
        if existing is None:
            embedded = embed(texts)
        else:
            embedded = existing.take(len(chunk))[[place - chunk[0][0] for place, _ in filled]]
            few = slice(None, None, max(1, len(filled) // _CHECKED))
            _require_same(existing, filled[few], embedded[few], embed)
        if texts:
            gathered.add(tokens_of(gathered.tokenizer, texts, gathered.longest), embedded, DOCUMENTS)
        for text in texts:
            stand_ins.add(text)
        bar.update(len(chunk))
    if existing is not None:
        existing.end()
    return left_out


def _require_same(
    existing: Existing, texts: Sequence[tuple[int, str]], found: Float[np.ndarray, "texts dim"], embed: Embed
) -> None:
    """Refuse embeddings of another model or prompt."""
    if not texts:
        return
    wanted = embed([text for _, text in texts])
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    cosines = (found * wanted).sum(1) / np.maximum(lengths, np.finfo(np.float32).tiny)
    worst = int(cosines.argmin())
    if cosines[worst] < _SAME:
        raise ValueError(
            f"{existing.where}: row {texts[worst][0]} is not what this model makes of the document {texts[worst][1][:60]!r} "
            f"(cosine {cosines[worst]:.2f}). Pass embeddings by `model.encode_document`, in the order of the documents; "
            "those of another model, another prompt or a cut do not fit."
        )


def different(queries: Iterable[str] | None, name: str) -> tuple[list[str], LeftOut]:
    """Return each query once, without empty ones."""
    left_out = LeftOut(name)
    rows: Iterator[tuple[int, Any]] = enumerate(rows_of(() if queries is None else queries, name))
    return list(
        dict.fromkeys(checked_text(row, f"{name}[{place}]") for place, row in rows if not left_out.lacks(row))
    ), left_out
