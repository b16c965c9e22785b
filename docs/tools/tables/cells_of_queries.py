"""The cells of the tables on alignment and on small query sides."""

from __future__ import annotations

import itertools

import pandas as pd
from reports import RESULTS, Cells, reported

__all__ = ["aligned", "codes", "halves", "keywords", "maps", "shallow", "tables_for_queries", "trained", "trained_briefly"]

# The five search sets by the share of layers that embed the queries: a report's heading and row.
SHALLOW = [
    *[("all-MiniLM-L6-v2", "384", way) for way in ("first layers", "first and last layers", "aligned")],
    *[("all-MiniLM-L6-v2", "64", way) for way in ("aligned", 'rotation="search"')],
    *[("all-mpnet-base-v2", "768", way) for way in ("first layers", "first and last layers", "aligned")],
    *[("all-mpnet-base-v2", "64", way) for way in ('rotation="keep"', "aligned")],
]
# What is free, and what `align` adds to it: rows of the reports.
STEPS = ("first layers", "first and last layers", "aligned")
HALVES = {"all-MiniLM-L6-v2": "3L-384d", "all-mpnet-base-v2": "6L-768d", "multilingual-e5-small": "6L-384d"}
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


def aligned() -> Cells:
    """Return STS over the ladder and search by half the layers, on three models."""
    rows = [["", *(f"{kind}, {way}" for kind in ("STS", "search") for way in STEPS), "search, whole model"]]
    for model, half in HALVES.items():
        sts = reported(f"alignment/{model}/sts.md", "STS")
        search = reported(f"alignment/{model}/search.md", f"Search, {half[3:-1]} dims")
        place = search[""].index(half) - 1
        cells = [*(sts[way][-1] for way in STEPS), *(search[way][place] for way in STEPS)]
        rows.append([model, *cells, search["first layers"][-2]])
    return rows


def shallow() -> Cells:
    """Return search by queries of ever more layers, on two models whose depths are sixths."""
    rows = [["Queries by", "dims", "1/6", "1/3", "1/2", "2/3", "5/6", "all"]]
    for model, dims, way in SHALLOW:
        scores = reported(f"alignment/{model}/search.md", f"Search, {dims} dims")[way]
        name = f"`{way}`" if "=" in way else way
        rows.append([f"{model}, {name}", dims, *scores[:-1]])
    return rows


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


def halves() -> Cells:
    """Return the share that half of the layers, and none, keep of the whole model, in percent."""
    rows = [["", *HALVES]]
    for kind, way in itertools.product(("sts", "search"), STEPS):
        cells = []
        for model, half in HALVES.items():
            heading = f"STS, all {half[3:-1]} dims" if kind == "sts" else f"Search, {half[3:-1]} dims"
            table = reported(f"alignment/{model}/{kind}.md", heading)
            cells.append(100 * float(table[way][table[""].index(half) - 1]) / float(table["first layers"][-2]))
        name = {"sts": "sentence similarity", "search": "search"}[kind]
        rows.append([f"{name}: {way}", *(f"{cell:.0f}" for cell in cells)])
    tables = [reported(f"queries/{model}.md") for model in HALVES]
    kept = [next(row for name, row in table.items() if name.startswith("table, 100%"))[6] for table in tables]
    return [*rows, ["search: no layer, a token table", *(f"{float(cell):.0f}" for cell in kept)]]


def tables_for_queries() -> Cells:
    """Return what token tables keep of search, on three models."""
    rows = [["Queries by", *itertools.chain.from_iterable((model, "kept") for model in HALVES)]]
    of = [reported(f"queries/{model}.md") for model in HALVES]
    starts = {"all layers": "all ", "table": "table, 100%", "table, with 955 real questions": "table, with real"}
    for shown, start in starts.items():
        found = [row for report in of for name, row in report.items() if name.startswith(start)]
        rows.append([shown, *(cell for row in found for cell in row[5:7])])
    return rows


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


def keywords() -> Cells:
    """Return the means of search by words, by a token table, by all layers and by model2vec."""
    report = reported("queries/all-MiniLM-L6-v2-keywords.md")
    names = [name for name in report if name and "256" not in name]
    return [["all-MiniLM-L6-v2", "nDCG@10"], *([name, report[name][-1]] for name in names)]
