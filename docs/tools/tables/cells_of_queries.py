"""The cells of the tables on alignment and on small query sides."""

from __future__ import annotations

import pandas as pd
from reports import RESULTS, Cells, reported

__all__ = ["codes", "maps", "trained", "trained_briefly"]

# Name, code of the results, dims.
CODES = [
    *[("float32", "float32", 384), ("int8", "int8", 384), ("int8", "int8", 64)],
    *[("one bit", "binary by the mean, float32 queries", dim) for dim in (384, 128)],
    *[("one bit, rotated", "binary, rotated, float32 queries", dim) for dim in (384, 128)],
    *[("one bit, rotated, queries too", "binary, rotated", dim) for dim in (384, 128)],
]
MAPS = ["Procrustes", "Procrustes, centred", "align, into"]

BRIEFLY = [
    *[("all-MiniLM-L6-v2, 3 of 6 layers", "all-MiniLM-L6-v2-3L", texts) for texts in (800, 12_800, 50_870)],
    ("all-mpnet-base-v2, 6 of 12 layers", "all-mpnet-base-v2-6L", 6_400),
    ("multilingual-e5-small, 6 of 12 layers", "multilingual-e5-small-6L", 12_800),
]


def codes() -> Cells:
    """Return search in an index of ever fewer bytes."""
    scores = pd.read_csv(RESULTS / "codes" / "all-MiniLM-L6-v2.csv").query("way == 'rotation=\"search\"'")
    rows = [["An index of", "bytes", "queries by 3 layers", "queries by 6 layers"]]
    for name, code, dim in CODES:
        found = scores[(scores["code"] == code) & (scores["dim"] == dim)].set_index("layers")
        rows.append(
            [f"{name}, {dim} dims", f"{found['bytes'][3]:,.0f}", *(f"{found['score'][layers]:.1f}" for layers in (3, 6))]
        )
    return rows


def maps() -> Cells:
    """Return the share of search that maps into another model's index keep, in both directions."""
    names = ("all-MiniLM-L6-v2", "multilingual-e5-small")
    file = f"other_index/{'-'.join(names)}.md"
    ways = [reported(file, f"{query} in the index of {index}") for query, index in (names, names[::-1])]
    heads = [f"{short}: {column}" for short, way in zip(("MiniLM", "E5"), ways, strict=True) for column in way[""][1:4]]
    return [["", *heads], *([name, *(cell for way in ways for cell in way[name][:3])] for name in MAPS)]


def trained() -> Cells:
    """Return what three trained layers keep of search, by steps and dims."""
    table = of_training("all-MiniLM-L6-v2-3L", 50_870)
    return [table[""], *([step, *table[step]] for step in ("0", "200", "400", "600", "800"))]


def trained_briefly() -> Cells:
    """Return what trained layers keep of search with all dims after up to 200 steps, by model and texts."""
    rows = [["", "texts", "0 steps", "100 steps", "200 steps"]]
    for name, cut, texts in BRIEFLY:
        table = of_training(cut, texts)
        rows.append([name, f"{texts:,}", *(table.get(step, [""])[0] for step in ("0", "100", "200"))])
    return rows


def of_training(cut: str, texts: int) -> dict[str, list[str]]:
    """Return the share of search by steps of training an aligned cut on texts."""
    return reported(f"trained_queries/{cut}-aligned-distance-{texts}.md")
