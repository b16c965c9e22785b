"""The token table of depth 0: rows of any precision, added in float32, that say how they were fitted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from st_matryoshka2d._hosts.torch import around
from st_matryoshka2d.files.atomic import replace_file

_FIT = "fit"  # in the metadata of a file of rows


class Table(StaticEmbedding):
    """A `StaticEmbedding` that adds rows of half precision in float32, wherever it is loaded, and tells of its fit.

    The rows of a text without tokens add up to 0, which a `Normalize` divides by 1e-12: in float16
    that is 0, and the embedding NaN. So half rows are saved as model2vec does, with a weight for
    each token, which sentence-transformers multiplies in float32.

    `fit` has the numbers of documents and queries, how the dims agree with the whole model, and of
    a cut the name of that model. It is in the metadata of the file of rows, which all whom the umask
    allows may read. Plain sentence-transformers loads the folder without it.
    """

    fit: Mapping[str, Any] = MappingProxyType({})

    def __reduce__(self) -> tuple[Any, ...]:
        return _unmade, (), dict(vars(self))

    @classmethod
    def of(cls, table: StaticEmbedding, fit: Mapping[str, Any]) -> Table:
        """Return a table with the same rows and another fit."""
        made = _unmade()
        vars(made).update(vars(table), fit=dict(fit))
        return made

    @classmethod
    def around(cls, table: StaticEmbedding, embedding: nn.EmbeddingBag) -> Table:
        """Return a table with other rows, and the settings, the mode, the tokenizer and the fit of this one."""
        return cls.of(around(table, {"embedding": embedding}), getattr(table, "fit", {}))

    @property
    def facts(self) -> dict[str, str]:
        """What files of rows have as metadata."""
        return {_FIT: json.dumps(dict(self.fit))}

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

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write rows and tokenizer."""
        rows = self.embedding.weight.detach().contiguous()
        stored = {"embeddings": rows, "weights": torch.ones(len(rows))} if _is_half(rows) else {"embedding.weight": rows}
        replace_file(Path(output_path, "model.safetensors"), partial(save_file, stored, metadata=self.facts))
        self.tokenizer.save(str(Path(output_path, "tokenizer.json")))


# sentence-transformers writes the class name into modules.json, and only trusts its own classes.
Table.__module__, Table.__name__ = StaticEmbedding.__module__, StaticEmbedding.__name__
Table.__qualname__ = StaticEmbedding.__qualname__


def _unmade() -> Table:
    """Create an empty object for unpickling, which cannot find the class by its name."""
    return Table.__new__(Table)


def fit_in(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """Read the fit from the metadata of a file; empty if the file says nothing."""
    return dict(json.loads((metadata or {}).get(_FIT, "{}")))


def _is_half(rows: Tensor) -> bool:
    return rows.dtype in (torch.float16, torch.bfloat16)
