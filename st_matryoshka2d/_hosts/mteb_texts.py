"""The text of a query and of a document, as mteb joins their parts; reading this imports nothing of mteb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def query_texts(queries: Any) -> list[str]:
    """Convert queries to texts as mteb (2.26) does: an instruction goes after a query, but before a conversation."""
    columns, texts = queries[:], []
    instructions = columns.get("instruction", [None] * len(queries))
    for query, instruction in zip(columns["text"], instructions, strict=True):
        parts = [query, instruction]
        if not isinstance(query, str):
            turns = (said if isinstance(said, str) else f"{said['role']}: {said['content']}" for said in query)
            parts = [instruction, "; ".join(turns)]
        texts.append(" ".join(part for part in parts if part is not None))
    return texts


def document_texts(chunk: Mapping[str, Sequence[str]]) -> list[str]:
    """Join titles and texts as mteb does."""
    titles = chunk.get("title") or [""] * len(chunk["text"])
    return [f"{title} {text}".strip() if title else text.strip() for title, text in zip(titles, chunk["text"], strict=True)]
