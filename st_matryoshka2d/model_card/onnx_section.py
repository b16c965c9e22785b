"""The section of an exported graph beside a saved model: how to read it without torch."""

from __future__ import annotations

from pathlib import Path

from st_matryoshka2d.files.atomic import replace_file

_GRAPH, _CONFIG = "model.onnx", "onnx_embedder.json"  # as `export_onnx` writes; reading them needs its extra
_SECTION = """## ONNX

`model.onnx`, {megabytes:.1f} MB, is this model as one graph: from `input_ids` and `attention_mask` to the embedding, with \
pooling, dims and normalization. `tokenizer.json` pads and cuts as the model does, and `onnx_embedder.json` has the prompts.

```python
from st_matryoshka2d import OnnxEmbedder  # needs onnxruntime, NumPy and tokenizers, not torch

embedder = OnnxEmbedder.load("{name}")  # a folder
vectors = embedder.encode_query(["..."])
```"""


_CARD = """---
library_name: onnx
pipeline_tag: sentence-similarity
tags:
- sentence-similarity
- feature-extraction
---

# {name}
"""


def onnx_section(folder: Path, name: str) -> str:
    """Return the section; empty if the folder has no exported graph."""
    if not is_exported(folder):
        return ""
    return _SECTION.format(name=name, megabytes=(folder / _GRAPH).stat().st_size / 1e6)


def is_exported(folder: Path) -> bool:
    """Tell whether a folder has an exported graph."""
    return all((folder / file).is_file() for file in (_GRAPH, _CONFIG))


def begin_card(folder: Path) -> None:
    """Write the card of a folder that has an exported graph alone."""
    name = folder.resolve().name
    replace_file(folder / "README.md", lambda part: part.write_text(_CARD.format(name=name), encoding="utf-8"))
