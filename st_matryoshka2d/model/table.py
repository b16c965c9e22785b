"""The token table of depth 0: rows of any precision, added in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from st_matryoshka2d._hosts.torch import around


class Table(StaticEmbedding):
    """A `StaticEmbedding` that adds rows of half precision in float32, wherever it is loaded.

    The rows of a text without tokens add up to 0, which a `Normalize` divides by 1e-12: in float16
    that is 0, and the embedding NaN. So half rows are saved as model2vec does, with a weight for
    each token, which sentence-transformers multiplies in float32.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _unmade, (), dict(vars(self))

    @classmethod
    def around(cls, table: StaticEmbedding, embedding: nn.EmbeddingBag) -> Table:
        """Return a table with other rows, and the settings, the mode and the tokenizer of this one."""
        made = cls.__new__(cls)
        vars(made).update(vars(around(table, {"embedding": embedding})))
        return made

    def is_stored_in_half(self) -> bool:
        """Tell whether float16 has all values of the rows, which sentence-transformers reads in float32."""
        rows = self.embedding.weight
        return bool((rows.half() == rows).all())

    def forward(self, features: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        """Embed each text by the mean of the rows of its tokens."""
        rows = self.embedding.weight
        if not _is_half(rows):
            return super().forward(features, **kwargs)
        own = rows[features["input_ids"]].float()
        places = torch.arange(len(own), device=own.device)
        features["sentence_embedding"] = embedding_bag(places, own, features["offsets"], mode="mean")
        return features

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write rows and tokenizer."""
        rows = self.embedding.weight.detach()
        super().save(output_path, *args, safe_serialization=safe_serialization, **kwargs)
        if _is_half(rows) and safe_serialization:
            stored = {"embeddings": rows.contiguous(), "weights": torch.ones(len(rows))}
            save_file(stored, Path(output_path) / "model.safetensors")


# Plain sentence-transformers loads it by this name, as it does `Readout`.
Table.__module__, Table.__name__, Table.__qualname__ = (
    StaticEmbedding.__module__,
    StaticEmbedding.__name__,
    StaticEmbedding.__qualname__,
)


def _unmade() -> Table:
    """Create an empty object for unpickling, which cannot find the class by its name."""
    return Table.__new__(Table)


def _is_half(rows: Tensor) -> bool:
    return rows.dtype in (torch.float16, torch.bfloat16)
