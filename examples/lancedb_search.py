"""Two-stage search in LanceDB: few dims make a shortlist, all dims re-rank it. Fewer layers may embed the queries.

    make example-lancedb_search                                            # generated sentences
    .venv/bin/python examples/lancedb_search.py --data FOLDER              # corpus, queries and qrels as Parquet files

A table has two vector columns: the first 64 coordinates, and all of them. A search of the small
column also returns the full embeddings of its shortlist, and one matrix product re-ranks them. For
comparison, the engine's own two stages: an index of quantized vectors, refined with the float
vectors. Prints the accuracy, bytes and speed of each method.
"""

from __future__ import annotations

import shutil

import lancedb
import numpy as np
import pyarrow as pa
from _demo.engines import OUT, Find, bytes_of, report, start
from lancedb.index import IvfPq
from lancedb.query import LanceVectorQueryBuilder

DIM, SHORTLIST = 64, 100

search = start()
full = search.documents.shape[1]
shutil.rmtree(OUT / "lancedb", ignore_errors=True)
database = lancedb.connect(OUT / "lancedb")


def table(name: str, **dims: int) -> lancedb.table.Table:
    """Create a table of the documents, with a vector column for each of `dims`."""
    columns = {"id": pa.array(range(len(search.documents)))}
    for column, dim in dims.items():
        columns[column] = pa.FixedSizeListArray.from_arrays(search.documents[:, :dim].ravel(), dim)
    return database.create_table(name, pa.table(columns))


def nearest(of: lancedb.table.Table, column: str, query: np.ndarray, count: int = 10) -> LanceVectorQueryBuilder:
    """Build a search query. Without an index on the column, the search is exhaustive."""
    return of.search(query, vector_column_name=column).distance_type("cosine").limit(count)


def ids(nearest: LanceVectorQueryBuilder) -> list[int]:
    """Run a search; return the ids."""
    found: list[int] = nearest.select(["id", "_distance"]).to_arrow()["id"].to_pylist()
    return found


wide, narrow = table("wide", whole=full), table("narrow", small=DIM)
both, quantized = table("both", small=DIM, whole=full), table("quantized", whole=full)
quantized.create_index("whole", config=IvfPq(distance_type="cosine", num_partitions=1, num_sub_vectors=full // 8))


def ranked(query: np.ndarray) -> list[int]:
    """Search with few dims and re-rank the shortlist with all dims."""
    shortlist = nearest(both, "small", query[:DIM], SHORTLIST).select(["id", "whole", "_distance"]).to_arrow()
    order = np.argsort(-(np.stack(shortlist["whole"].to_numpy()) @ query))
    return [int(row) for row in shortlist["id"].to_numpy()[order[:10]]]


def refined(query: np.ndarray) -> list[int]:
    """Search quantized vectors and re-rank the shortlist with the float vectors."""
    return ids(nearest(quantized, "whole", query).refine_factor(SHORTLIST // 10))


finds: dict[str, tuple[str, Find]] = {
    f"all {full} dims": ("wide", lambda query: ids(nearest(wide, "whole", query))),
    f"{DIM} dims": ("narrow", lambda query: ids(nearest(narrow, "small", query[:DIM]))),
    f"{DIM} dims, then all": ("both", ranked),
    f"{full // 8} bytes of IVF-PQ, then all": ("quantized", refined),
}
ways = {way: (find, bytes_of(OUT / f"lancedb/{name}.lance")) for way, (name, find) in finds.items()}
report(f"LanceDB {lancedb.__version__}", search, ways)
