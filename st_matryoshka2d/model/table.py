"""The token table of depth 0: a `StaticEmbedding` that says how it was fitted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from st_matryoshka2d.files.atomic import replace_file

_FIT = "fit"  # in the metadata of a file of rows


class Table(StaticEmbedding):
    """A `StaticEmbedding` whose file all whom the umask allows may read, and tells of the fit.

    `fit` has the numbers of documents and queries, how the dims agree with the whole model, and of
    a cut the name of that model. Plain sentence-transformers loads the folder without it.
    """

    fit: Mapping[str, Any]

    @classmethod
    def of(cls, table: StaticEmbedding, fit: Mapping[str, Any]) -> Table:
        """Return a table with the same rows and another fit."""
        made = _unmade()
        vars(made).update(vars(table), fit=fit)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _unmade, (), dict(vars(self))

    @property
    def facts(self) -> dict[str, str]:
        """What files of rows have as metadata."""
        return {_FIT: json.dumps(self.fit)}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write rows and tokenizer as a `StaticEmbedding` does."""
        rows = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        replace_file(Path(output_path, "model.safetensors"), partial(save_file, rows, metadata=self.facts))
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
