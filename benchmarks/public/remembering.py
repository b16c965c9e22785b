"""A model that embeds no text twice, in this run or a later one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from measure import model_name
from sentence_transformers import SentenceTransformer

from public.sets import Rows

__all__ = ["Remembering"]

_CHUNK = 2048  # texts that an interruption loses at most


class Remembering(SentenceTransformer):
    """Embeds queries and documents with its own prompts, and keeps the embeddings in a folder.

    A file `query-<name>.npz` or `document-<name>.npz` has `texts` and their embeddings `v`.

    Args:
        model: A folder or a name on the Hub.
        cache: The folder of the embeddings, with a folder for each model.
    """

    def __init__(self, model: str, cache: Path) -> None:
        super().__init__(model, device="cpu")
        self.name = model_name(model)
        self.folder = cache / self.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._known: dict[str, dict[str, Rows]] = {"query": {}, "document": {}}
        for kind, known in self._known.items():
            for file in sorted(self.folder.glob(f"{kind}-*.npz")):
                kept = np.load(file, allow_pickle=True)
                known.update(zip(kept["texts"].tolist(), kept["v"], strict=True))

    def encode_query(self, inputs: Sequence[str], **settings: Any) -> Any:  # type: ignore[override]
        """Return embeddings of queries, as a tensor if that is asked for."""
        return self._remembered("query", list(inputs), settings)

    def encode_document(self, inputs: Sequence[str], **settings: Any) -> Any:  # type: ignore[override]
        """Return embeddings of documents, as a tensor if that is asked for."""
        return self._remembered("document", list(inputs), settings)

    def _remembered(self, kind: Literal["query", "document"], texts: list[str], settings: dict[str, Any]) -> Any:
        known = self._known[kind]
        encode = super().encode_query if kind == "query" else super().encode_document
        # sorted by length, so that an even load follows and chunks have little padding
        new = sorted({text for text in texts if text not in known}, key=lambda text: (len(text), text))
        for start in range(0, len(new), _CHUNK):
            part = new[start : start + _CHUNK]
            made = np.asarray(encode(part, batch_size=32, show_progress_bar=False), dtype=np.float32)
            known.update(zip(part, made, strict=True))
            np.savez(self.folder / f"{kind}-{len(known):07}.npz", texts=np.array(part, dtype=object), v=made)
        rows = np.stack([known[text] for text in texts])
        return torch.from_numpy(rows) if settings.get("convert_to_tensor") else rows
