"""The sections on what is more than layers and dimensions: two sides, a token table, a smaller vocabulary, a graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from sentence_transformers.base.modules import Router
from transformers.utils import SAFE_WEIGHTS_NAME

from st_matryoshka2d.model.agreement_table import agreement_table
from st_matryoshka2d.model.declaration import Declaration, agreement_in, written_depth
from st_matryoshka2d.model.sides import DOCUMENT, QUERY
from st_matryoshka2d.model.table import fit_in
from st_matryoshka2d.model_card.sizes_section import first_module, markdown, origin, read_json

_SIDES = """## Queries and documents

This model has two encoders, whose embeddings are in one space: {query} for queries, {document} for documents.{made}

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

_TABLE = """## Token table

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

_VOCABULARY = """## Vocabulary

This model has {rows:,} of the {of:,} tokens of {whole}: those of the texts below, and others that look like them. A text
that has no other token has the same embedding as before, and other words are split into more tokens. Of the texts, a
tenth was left out of a first vocabulary: the share of them that were embedded exactly as before, and the mean cosine of the
others with their embeddings before. Texts in other languages are embedded badly.

{table}"""

_ONNX = """## ONNX

{made}`model.onnx`, {megabytes:.1f} MB, is this model as one graph{precision}: from `input_ids` and `attention_mask` to the \
embedding, with pooling, dims and normalization. `tokenizer.json` pads and cuts as the model does, and \
`onnx_embedder.json` has the prompts.

```python
from st_matryoshka2d import OnnxEmbedder  # needs onnxruntime, NumPy and tokenizers, not torch

embedder = OnnxEmbedder.load("{name}")  # a folder
vectors = embedder.encode_query(["..."])
```"""
_GRAPH, _CONFIG = "model.onnx", "onnx_embedder.json"  # as `export_onnx` writes; reading them needs its extra


def sides_section(folder: Path, name: str) -> str:
    """Return the section for a saved asymmetric model; empty for any other."""
    config = read_json(folder / Router.config_file_name)
    structure = config.get("structure", {})
    if set(structure) != {QUERY, DOCUMENT}:
        return ""
    layers = {side: written_depth(read_json(folder / parts[0] / "config.json")) for side, parts in structure.items()}
    if layers[QUERY] == layers[DOCUMENT]:
        return ""
    encoders = {side: _encoder(number) for side, number in layers.items()}
    of_queries = Declaration.of(read_json(folder / structure[QUERY][0] / "config.json"))
    made = "".join(f" {part}" for part in origin(of_queries, "The encoder of queries"))
    return _SIDES.format(name=name, made=made, **encoders)


def _encoder(num_layers: int | None) -> str:
    if num_layers is None:
        return "a token table"
    return f"{num_layers} layers" if num_layers > 1 else "1 layer"


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
    return _TABLE.format(name=name, rows=rows, whole=whole, fit=_fit(fit))


def _fit(fit: Mapping[str, Any]) -> str:
    """Say what the rows were fitted to, and how well they agree with the whole model, as far as it is known."""
    if not fit:
        return "Nothing says what the rows were fitted to."
    queries = f"{fit['queries']:,} queries" if fit["queries"] else "queries made of them"
    told = f"The rows were fitted to {fit['documents']:,} documents and {queries}, for search in these documents."
    agreement = agreement_in(fit["agreement"])
    return told + (_AGREEMENT + markdown(*agreement_table(agreement)) if agreement else "")


def vocabulary_section(vocabulary: Mapping[str, Any]) -> str:
    """Return the section of a model with a smaller vocabulary; cells of what was not measured are empty."""
    exact, cosine = vocabulary["exact"], vocabulary["cosine"]
    rows = [
        [
            language,
            f"{count:,}",
            f"{exact[language]:.1%}" if language in exact else "",
            f"{cosine[language]:.3f}" if language in cosine else "",
        ]
        for language, count in vocabulary["texts"].items()
    ]
    table = markdown(["language", "texts", "exact", "cosine of others"], rows)
    return _VOCABULARY.format(**vocabulary, whole=f"`{vocabulary['model']}`", table=table)


def onnx_section(folder: Path, name: str) -> str:
    """Return the section; empty if the folder has no exported graph."""
    if not is_exported(folder):
        return ""
    about = read_json(folder / _CONFIG)
    megabytes = (folder / _GRAPH).stat().st_size / 1e6
    made = "".join(f"{part}\n\n" for part in origin(Declaration.of(about)))
    return _ONNX.format(name=name, made=made, megabytes=megabytes, precision=" in 8 bits" if about.get("int8") else "")


def is_exported(folder: Path) -> bool:
    """Tell whether a folder has an exported graph."""
    return all((folder / file).is_file() for file in (_GRAPH, _CONFIG))


def is_graph_alone(folder: Path) -> bool:
    """Tell whether a folder has an exported graph, and no model that sentence-transformers reads."""
    return is_exported(folder) and not (folder / "modules.json").is_file()


def base_of_graph(folder: Path) -> str | None:
    """Return the model on the Hub that an exported one was made of, if it is known."""
    base: str | None = read_json(folder / _CONFIG).get("base_model")
    return base
