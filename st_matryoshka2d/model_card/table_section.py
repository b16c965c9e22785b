"""The section of a token table: what it is for, what it was fitted to, and how to read it without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers.utils import SAFE_WEIGHTS_NAME

from st_matryoshka2d.model.agreement_table import agreement_table
from st_matryoshka2d.model.declaration import agreement_in
from st_matryoshka2d.model.table import fit_in
from st_matryoshka2d.model_card.readme import first_module, markdown

_SECTION = """## Token table

This model has a row for each of {rows:,} tokens and no layer. The embedding of a query is the mean of its rows, and \
searches documents that {whole} embedded. It knows words, not their order: do not compare sentences with it, nor embed \
documents.

{fit}

```python
from st_matryoshka2d import TokenTable  # needs NumPy and tokenizers, not torch

table = TokenTable.load("{name}")  # a folder
vectors = table.encode_query(["..."])
```"""
_AGREEMENT = """ How well they agree with the whole model, on queries left out of the fit: the mean correlation of a \
query's similarities to the other queries, by the rows and by the whole model.

"""


def table_section(folder: Path, name: str) -> str:
    """Return the section for a saved token table; empty for any other model."""
    kind, place = first_module(folder)
    file = place / SAFE_WEIGHTS_NAME
    if not (kind.endswith(".StaticEmbedding") and file.is_file()):
        return ""
    with safe_open(file, framework="np") as opened:
        fit = fit_in(opened.metadata())
        rows = max(opened.get_slice(key).get_shape()[0] for key in opened.keys())  # noqa: SIM118  # no dict
    model = fit.get("model")
    whole = f"[{model}](https://huggingface.co/{model})" if model else "the whole model"
    return _SECTION.format(name=name, rows=rows, whole=whole, fit=_fit(fit))


def _fit(fit: Mapping[str, Any]) -> str:
    """Say what the rows were fitted to, and how well they agree with the whole model, as far as it is known."""
    if not fit:
        return "Nothing says what the rows were fitted to."
    queries = f"{fit['queries']:,} queries" if fit["queries"] else "queries made of them"
    told = f"The rows were fitted to {fit['documents']:,} documents and {queries}, for search in these documents."
    agreement = agreement_in(fit["agreement"])
    return told + (_AGREEMENT + markdown(*agreement_table(agreement)) if agreement else "")
