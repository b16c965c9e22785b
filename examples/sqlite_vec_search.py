"""Two-stage search in SQLite: few dims make a shortlist, all dims re-rank it. Fewer layers may embed the queries.

    make example-sqlite_vec_search                                         # generated sentences
    .venv/bin/python examples/sqlite_vec_search.py --data FOLDER           # corpus, queries and qrels as Parquet files

sqlite-vec cuts embeddings in SQL: `vec_slice` keeps the first 64 coordinates, which the virtual
table searches. An auxiliary column stores the full embedding and is read for the shortlist only.
Prints the accuracy, bytes and speed of each method.

Uses the SQLite of apsw, because the sqlite3 module of many Pythons cannot load extensions.
"""

from __future__ import annotations

import apsw
import numpy as np
import sqlite_vec
from _demo.engines import OUT, Find, bytes_of, report, start

DIM, SHORTLIST = 64, 100
SMALL = f"vec_slice(:vector, 0, {DIM})"

search = start()
full = search.documents.shape[1]


def built(name: str, columns: str, values: str, select: str) -> tuple[Find, int]:
    """Write the documents to a file; return a function that finds ten and the bytes of the file."""
    file = OUT / f"{name}.sqlite"
    file.unlink(missing_ok=True)
    database = apsw.Connection(str(file))
    database.enable_load_extension(True)
    database.load_extension(sqlite_vec.loadable_path())
    database.execute("PRAGMA page_size = 8192")  # fits five full embeddings; the default fits two
    database.execute(f"CREATE VIRTUAL TABLE documents USING vec0(id INTEGER PRIMARY KEY, {columns})")
    with database:  # one transaction
        rows = ({"id": row, "vector": vector.tobytes()} for row, vector in enumerate(search.documents))
        database.executemany(f"INSERT INTO documents VALUES (:id, {values})", rows)

    def find(query: np.ndarray) -> list[int]:
        return [row for (row,) in database.execute(select, {"vector": query.tobytes()})]

    return find, bytes_of(file)


ways = {
    f"all {full} dims": built(
        "wide",
        f"whole float[{full}] distance_metric=cosine",
        ":vector",
        "SELECT id FROM documents WHERE whole MATCH :vector AND k = 10",
    ),
    f"{DIM} dims": built(
        "narrow",
        f"small float[{DIM}] distance_metric=cosine",
        SMALL,
        f"SELECT id FROM documents WHERE small MATCH {SMALL} AND k = 10",
    ),
    f"{DIM} dims, then all": built(
        "both",
        f"small float[{DIM}] distance_metric=cosine, +whole BLOB",
        f"{SMALL}, :vector",
        f"""
        WITH shortlist AS MATERIALIZED (
            SELECT id, whole FROM documents WHERE small MATCH {SMALL} AND k = {SHORTLIST}
        )
        SELECT id FROM shortlist ORDER BY vec_distance_cosine(whole, :vector) LIMIT 10
        """,
    ),
}
report(f"sqlite-vec {sqlite_vec.__version__}", search, ways)
