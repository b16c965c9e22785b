"""The section of an exported graph beside a saved model: how to read it without torch."""

from __future__ import annotations

from pathlib import Path

_GRAPH, _CONFIG = "model.onnx", "onnx_embedder.json"  # as `export_onnx` writes; reading them needs its extra
_SECTION = """## ONNX

`model.onnx`, {megabytes:.1f} MB, is this model as one graph: from `input_ids` and `attention_mask` to the embedding, with \
pooling, dims and normalization. `tokenizer.json` pads and cuts as the model does, and `onnx_embedder.json` has the prompts.

```python
from st_matryoshka2d import OnnxEmbedder  # needs onnxruntime, NumPy and tokenizers, not torch

embedder = OnnxEmbedder.load("{name}")  # a folder
vectors = embedder.encode_query(["..."])
```"""


def onnx_section(folder: Path, name: str) -> str:
    """Return the section; empty if the folder has no exported graph."""
    if not all((folder / file).is_file() for file in (_GRAPH, _CONFIG)):
        return ""
    return _SECTION.format(name=name, megabytes=(folder / _GRAPH).stat().st_size / 1e6)
