"""Export aligned cuts to ONNX, in float32 and in 8 bits: their bytes, their speed and their difference from the model.

    make example-onnx_export

Writes a folder for each to `runs/onnx`, and prints megabytes, the time on one core, one text at a
time, and the largest difference of a coordinate from sentence-transformers'.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _demo import serving as demo_serving

from st_matryoshka2d import OnnxEmbedder, export_onnx, truncate

SIZES, OUT = ("1L-64d", "3L-64d", "3L-384d", "6L-384d"), Path("runs/onnx")


def timed(encode: Callable[[str], Any], text: str) -> float:
    """Return the milliseconds that one text takes."""
    begun = time.perf_counter()
    encode(text)
    return 1000 * (time.perf_counter() - begun)


torch.set_num_threads(1)
_, aligned, texts = demo_serving.start()
texts = [*texts[:100], " ".join(texts)]  # the last must be cut
rows = []
for size in SIZES:
    cut = truncate(aligned, size)
    for name, int8 in ((size, False), (f"{size} int8", True)):
        export_onnx(cut, OUT / name, int8=int8)
        embedder = OnnxEmbedder.load(OUT / name, num_threads=1)
        gap = np.abs(embedder.encode(texts) - cut.encode(texts)).max()
        # in turns, so that both meet the same other programs
        times = [(timed(cut.encode, text), timed(embedder.encode, text)) for text in texts[:100]]
        torch_ms, onnx_ms = np.median(times, axis=0)
        megabytes = (OUT / name / "model.onnx").stat().st_size / 1e6
        rows.append([name, f"{megabytes:.1f}", f"{torch_ms:.1f}", f"{onnx_ms:.1f}", f"{gap:.0e}"])
demo_serving.table(["size", "MB", "ms per text, torch", "ms per text, ONNX", "largest difference"], rows)
