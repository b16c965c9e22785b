"""The section of an asymmetric model: which size embeds queries and which documents, and how to call each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sentence_transformers.base.modules import Router

from st_matryoshka2d.model.declaration import written_depth
from st_matryoshka2d.model.sides import DOCUMENT, QUERY

_SECTION = """## Queries and documents

This model has two encoders, whose embeddings are in one space: {query} for queries, {document} for documents.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
documents = model.encode_document(["..."])  # {document}
queries = model.encode_query(["..."])  # {query}
print(model.similarity(queries, documents))
```

`encode` without `task="query"` embeds documents. A service that only embeds queries need not read the other encoder:

```python
from st_matryoshka2d import load  # of the package st_matryoshka2d

load("{name}", route="query").save_pretrained("query-encoder")  # a plain checkpoint
```"""


def sides_section(folder: Path, name: str) -> str:
    """Return the section for a saved asymmetric model; empty for any other."""
    config = _json(folder / Router.config_file_name)
    structure = config.get("structure", {})
    if set(structure) != {QUERY, DOCUMENT}:
        return ""
    layers = {side: written_depth(_json(folder / parts[0] / "config.json")) for side, parts in structure.items()}
    if layers[QUERY] == layers[DOCUMENT]:
        return ""
    return _SECTION.format(name=name, **{side: _encoder(number) for side, number in layers.items()})


def _encoder(num_layers: int | None) -> str:
    if num_layers is None:
        return "a token table"
    return f"{num_layers} layers" if num_layers > 1 else "1 layer"


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
