"""Two-stage search in Milvus: few dims make a shortlist, all dims re-rank it. Fewer layers may embed the queries.

    make example-milvus_search                                             # generated sentences
    .venv/bin/python examples/milvus_search.py --data FOLDER               # corpus, queries and qrels as Parquet files

A collection has two vector fields: the first 64 coordinates, and all of them. A search of the small
field also returns the full embeddings of its shortlist, and one matrix product re-ranks them.
Prints the accuracy, bytes and speed of each method in Milvus Lite, which stores a collection in a
folder. To use a server, replace the folder with its address.
"""

from __future__ import annotations

import shutil
from importlib.metadata import version

import numpy as np
from _demo.engines import OUT, Find, bytes_of, report, start
from pymilvus import DataType, MilvusClient

DIM, SHORTLIST = 64, 100

search = start()
full = search.documents.shape[1]


def database(name: str, **dims: int) -> MilvusClient:
    """Create a collection with a vector field for each of `dims`. FLAT is exact; use HNSW for more documents."""
    shutil.rmtree(OUT / f"milvus-{name}.db", ignore_errors=True)
    client = MilvusClient(str(OUT / f"milvus-{name}.db"))
    schema, indexes = client.create_schema(), client.prepare_index_params()
    schema.add_field("id", DataType.INT64, is_primary=True)
    for field, dim in dims.items():
        schema.add_field(field, DataType.FLOAT_VECTOR, dim=dim)
        indexes.add_index(field, index_type="FLAT", metric_type="COSINE")
    client.create_collection("documents", schema=schema, index_params=indexes)
    for begin in range(0, len(search.documents), 1000):
        part = enumerate(search.documents[begin : begin + 1000], begin)
        rows = [{"id": row, **{field: vector[:dim] for field, dim in dims.items()}} for row, vector in part]
        client.insert("documents", rows)
    client.flush("documents")
    return client


def nearest(client: MilvusClient, field: str, query: np.ndarray) -> list[int]:
    """Return the ids of ten documents, best first."""
    (hits,) = client.search("documents", [query], anns_field=field, limit=10)
    return [hit["id"] for hit in hits]


wide, narrow, both = database("wide", whole=full), database("narrow", small=DIM), database("both", small=DIM, whole=full)


def ranked(query: np.ndarray) -> list[int]:
    """Search with few dims and re-rank the shortlist with all dims."""
    (hits,) = both.search("documents", [query[:DIM]], anns_field="small", limit=SHORTLIST, output_fields=["whole"])
    order = np.argsort(-(np.array([hit["entity"]["whole"] for hit in hits]) @ query))
    return [hits[place]["id"] for place in order[:10]]


ways: dict[str, tuple[Find, int]] = {
    f"all {full} dims": (lambda query: nearest(wide, "whole", query), bytes_of(OUT / "milvus-wide.db")),
    f"{DIM} dims": (lambda query: nearest(narrow, "small", query[:DIM]), bytes_of(OUT / "milvus-narrow.db")),
    f"{DIM} dims, then all": (ranked, bytes_of(OUT / "milvus-both.db")),
}
report(f"Milvus Lite {version('milvus-lite')}", search, ways)
for client in (wide, narrow, both):
    client.close()
