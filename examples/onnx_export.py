"""Export aligned cuts to ONNX, each as one graph that includes readout, truncation to its dims and normalization.

    make example-onnx_export

sentence-transformers' own export contains only the Transformer and leaves the modules after it to
Python. These graphs take ids and a mask and return `sentence_embedding`: a tokenizer and ONNX
Runtime can serve them. Writes them and the tokenizer to `runs/onnx`, and prints megabytes, the time
on one core and the largest difference from sentence-transformers.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from _demo import serving as demo_serving
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import truncate

SIZES, OUT, INPUTS = ("1L-64d", "3L-64d", "3L-384d", "6L-384d"), Path("runs/onnx"), ("input_ids", "attention_mask")


class Pipeline(torch.nn.Module):
    """All modules of a cut, followed by truncation to its dims and normalization."""

    def __init__(self, cut: SentenceTransformer) -> None:
        super().__init__()
        self.cut, self.dim = cut, cut.get_embedding_dimension()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embed tokens of shape (texts, tokens) as (texts, dim)."""
        features = self.cut({"input_ids": input_ids, "attention_mask": attention_mask})
        return torch.nn.functional.normalize(features["sentence_embedding"][:, : self.dim], dim=1)


def export(cut: SentenceTransformer, file: Path) -> None:
    """Export a graph for any number of texts of any length."""
    tokens = cut.tokenizer(["A text", "and a longer one"], padding=True, return_tensors="pt")
    any_size = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
    torch.onnx.export(
        Pipeline(cut).eval(),
        tuple(tokens[name] for name in INPUTS),
        file,
        input_names=INPUTS,
        output_names=["sentence_embedding"],
        dynamo=True,
        dynamic_shapes=dict.fromkeys(INPUTS, any_size),
        external_data=False,  # one file; a model above 2 GB needs two
        verbose=False,
    )


OUT.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)
one_core = onnxruntime.SessionOptions()
one_core.intra_op_num_threads = 1
_, aligned, texts = demo_serving.start()
aligned.tokenizer.save_pretrained(OUT)
# the first has a text that must be truncated
batches = [[*texts[:9], " ".join(texts)], *([text] for text in texts[:100])]
rows = []
for size in SIZES:
    cut, file, times, gaps = truncate(aligned, size), OUT / f"{size}.onnx", [], []
    export(cut, file)
    session = onnxruntime.InferenceSession(file, one_core)
    for batch in batches:
        begun = time.perf_counter()
        tokens = cut.tokenizer(batch, padding=True, truncation=True, max_length=cut.max_seq_length, return_tensors="np")
        found = session.run(None, {name: tokens[name] for name in INPUTS})[0]
        between = time.perf_counter()
        gaps.append(np.abs(found - cut.encode(batch, normalize_embeddings=True)).max())
        times.append((time.perf_counter() - between, between - begun))
    torch_ms, onnx_ms = 1000 * np.median(times[1:], axis=0)
    rows.append([size, f"{file.stat().st_size / 1e6:.0f}", f"{torch_ms:.1f}", f"{onnx_ms:.1f}", f"{max(gaps):.0e}"])
demo_serving.table(["size", "MB", "ms per text, torch", "ms per text, ONNX", "largest difference"], rows)
