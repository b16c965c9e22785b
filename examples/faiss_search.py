"""Two-stage search in FAISS: few dims make a shortlist, all dims re-rank it. Fewer layers may embed the queries.

    make example-faiss_search                                              # generated sentences
    .venv/bin/python examples/faiss_search.py --data FOLDER                # corpus, queries and qrels as Parquet files

FAISS takes embeddings with all dims and cuts them itself: a transform keeps the first 64
coordinates and normalizes them again. `IndexRefine` re-ranks the shortlist with a second index over
all dims, stored as floats or as one byte per dim. Prints the accuracy, bytes and speed of each
index.
"""

from __future__ import annotations

import faiss
import numpy as np
from _demo.engines import OUT, Find, bytes_of, report, start

DIM, SHORTLIST = 64, 100

search = start()
full = search.documents.shape[1]
faiss.omp_set_num_threads(1)


def few(index: faiss.Index) -> faiss.Index:
    """Index only the first dims of full embeddings. For millions of documents, pass an `IndexHNSWFlat`."""
    cut = faiss.IndexPreTransform(faiss.NormalizationTransform(DIM, 2.0), index)
    # False: first dims, not evenly spaced
    cut.prepend_transform(faiss.RemapDimensionsTransform(full, DIM, False))
    return cut


def built(index: faiss.Index) -> tuple[Find, int]:
    """Index the documents; return a function that finds ten and the bytes of the index file."""
    index.train(search.documents)  # only int8 learns something: its ranges
    index.add(search.documents)
    faiss.write_index(index, str(OUT / "faiss.index"))
    refined = isinstance(index, faiss.IndexRefine)
    params = faiss.IndexRefineSearchParameters(k_factor=SHORTLIST / 10) if refined else None

    def find(query: np.ndarray) -> list[int]:
        ids: list[int] = index.search(query[None], 10, params=params)[1][0].tolist()
        return ids

    return find, bytes_of(OUT / "faiss.index")


int8 = faiss.IndexScalarQuantizer(full, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
ways = {
    f"all {full} dims": built(faiss.IndexFlatIP(full)),
    f"{DIM} dims": built(few(faiss.IndexFlatIP(DIM))),
    f"{DIM} dims, then all": built(faiss.IndexRefineFlat(few(faiss.IndexFlatIP(DIM)))),
    f"{DIM} dims, then all in int8": built(faiss.IndexRefine(few(faiss.IndexFlatIP(DIM)), int8)),
}
report(f"FAISS {faiss.__version__}", search, ways)
