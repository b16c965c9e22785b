"""What each size costs, in time, memory and bytes, beside its score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.grid.grid_tables import AXES, PER_DOCUMENT
from st_matryoshka2d.grid.pivots import means, selected
from st_matryoshka2d.sizes import Size, positive_int

HOW_TO_TIME = "grid.with_latency(benchmark_latency(model)), or the command `grid --times`"

# Bits per coordinate, under mteb's names and sentence-transformers' `ubinary`.
BITS = dict(float32=32, float16=16, bfloat16=16, int8=8, uint8=8, int4=4, uint4=4, binary=1, ubinary=1)


def vector_bytes(dim: int, precision: str = "float32") -> int:
    """Return the packed bytes of one vector, without the overhead of an index."""
    bits = BITS.get(precision)
    if bits is None:
        raise UsageError(f"Unknown precision {precision!r}; known are {', '.join(BITS)}.")
    return -(-positive_int(dim, "dim") * bits // 8)


def costs(
    frame: pd.DataFrame,
    latency: pd.DataFrame | None = None,
    task: str | None = None,
    queries_per_document: float | None = None,
    metric: str | None = None,
) -> pd.DataFrame:
    """Score and cost of every size and precision, ascending; NaN if a task, or the largest size, was not scored.

    With `queries_per_document`, there is one row per pair of query size and document size; without it, the grid has one
    document size, or that of the query.
    """
    cells, pairs = ["num_layers", "dim", "precision", "documents"], queries_per_document is not None
    # A missing task makes the mean NaN: a size must not look better for skipping a task.
    rows = selected(frame, task, metric, free=cells if pairs else cells[:-1])
    scores = means(rows, cells).mean(axis=1, skipna=False)
    kinds: dict[str, Any] = {"num_layers": int, "milliseconds_per_text": float, "parameters": "Int64", "megabytes": float}
    times = pd.DataFrame(latency, columns=[*kinds]).astype(kinds).set_index("num_layers")
    table = scores.rename("score").reset_index().join(times, on="num_layers")
    documents = [document_size(row) for row in table.itertuples()]
    stored = zip(documents, table["precision"], strict=True)
    table["bytes"] = [vector_bytes(size.dim, precision) for size, precision in stored]
    full = full_row(table)
    table["relative"] = table["score"] / (full["score"] if full is not None and full["score"] > 0 else np.nan)
    # In this order because a narrow terminal hides the middle columns.
    names = ["num_layers", "dim", "score", "relative", "precision", "milliseconds_per_text"]
    names += ["parameters", "megabytes", "bytes"]
    if pairs or (table["documents"] != AXES["documents"]).any():
        names.append("documents")
    if queries_per_document is not None:
        names.append("milliseconds_in_all")
        column = PER_DOCUMENT if latency is not None and PER_DOCUMENT in latency else "milliseconds_per_text"
        of_documents = pd.DataFrame(latency, columns=["num_layers", column]).astype(float).set_index("num_layers")[column]
        once = of_documents.reindex([size.num_layers for size in documents]).array
        table["milliseconds_in_all"] = once + queries_per_document * table["milliseconds_per_text"]
    return table.sort_values(["num_layers", "dim", "bytes"], ignore_index=True, kind="stable")[names]


def full_row(table: pd.DataFrame) -> pd.Series[Any] | None:
    """Return the row of the largest depth and width, of queries and of documents, at the highest precision.

    Scores are relative to it.
    """
    largest = table[(table["num_layers"] == table["num_layers"].max()) & (table["dim"] == table["dim"].max())]
    depths = pd.Series([document_size(row).num_layers for row in largest.itertuples()], largest.index, dtype=int)
    largest = largest[depths == depths.max()]
    return None if largest.empty else largest.loc[largest["bytes"].idxmax()]


def reference_name(row: Any, full_size: str) -> str:
    """Name the size to which scores are relative, and say whether it is the full size."""
    if str(Size(row["num_layers"], row["dim"])) == full_size == str(document_size(row)):
        return f"{name_of(row)} (the full size)"
    return f"{name_of(row)} (the largest of the grid{f', which lacks the full {full_size}' if full_size else ''})"


def document_size(row: Any) -> Size:
    """Return the document size in a row of `costs`, at most as wide as the query, because only common dims are compared."""
    size, documents = Size(row.num_layers, row.dim), getattr(row, "documents", AXES["documents"])
    if documents == AXES["documents"]:
        return size
    own = Size.parse(documents)
    return Size(own.num_layers, min(own.dim, size.dim))


def name_of(row: Any) -> str:
    """Name a row of `costs`: `"4L-128d"`, `"4L-128d int8"`, or `"3L-64d for queries, 6L-64d for documents"`."""
    size, own = Size(row.num_layers, row.dim), document_size(row)
    named = str(size) if row.precision == AXES["precision"] else f"{size} {row.precision}"
    return named if own == size else f"{named} for queries, {own} for documents"
