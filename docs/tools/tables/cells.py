"""The cells of each table, from the result files."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

__all__ = ["TABLES"]

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"

Cells = list[list[str]]
# The scores of a model: most methods, aligned models with their last layers, MIPIC at its paper's learning rate.
MINILM = ["reproduce/100x64", "reproduce/100x64-ends", "reproduce/100x64-2e-05"]
MPNET = [f"reproduce/all-mpnet-base-v2-100x32{kind}" for kind in ("", "-ends", "-2e-05")]
RECIPE = "aligned, distillation with labels, aligned"
METHODS = {
    "cut, not trained": "cut",
    "full size trained, then cut": "full size",
    "six models": "separate",
    "six models, all dims trained": "separate, all dims trained",
    **{name: name for name in ("MRL", "2DMSE", "Espresso", "Starbucks")},
    "SMAE, then Starbucks": "SMAE, Starbucks",
    "MIPIC": "MIPIC",
    "distillation, no labels": "distillation",
    "aligned, not trained": "cut, aligned",
    "recipe": RECIPE,
}
WIDTHS = [
    *["first dims", "random dims, seed 0", "dims of most variance", "random rotation"],
    *["components", "components, white", "first and last layers, aligned"],
]
DEPTHS = [
    *["first layers", "evenly spaced layers", "layers of most influence"],
    *["first layers, aligned", "evenly spaced layers, aligned", "first and last layers, aligned"],
]
CUTS = [
    *["first layers, first dims", "evenly spaced layers, first dims", "layers of most influence, first dims"],
    *["layers of most influence, components", "first and last layers, aligned"],
]
WAYS = [
    *["6 layers, as it is", "6 layers, first 128 dims", "6 layers, aligned, first 128 dims", "6 layers, 128 components"],
    *["6 layers, first 64 dims", "6 layers, aligned, first 64 dims", "6 layers, 64 components"],
    *["6 layers, aligned, first 64 dims, int8", "3 layers, as they are", "3 layers, 64 components", "3 layers, aligned"],
    *["queries 3 layers, documents 6, aligned", "model2vec, 256 dims", "model2vec, 64 dims"],
]
LOSSES = {
    ("`StarbucksLoss`, 6 sizes", "MultipleNegativesRanking"): ("starbucks", "mnrl"),
    ("`StarbucksLoss`, 6 sizes", "Matryoshka2dLoss, all layers and dims"): ("starbucks", "st-2d"),
    ("`TwoDMSELoss`", "MultipleNegativesRanking"): ("2dmse", "mnrl"),
    ("`EspressoLoss`", "MultipleNegativesRanking"): ("espresso", "mnrl"),
    ("`MIPICLoss`", "MatryoshkaLoss, the same dims"): ("mipic", "st-mrl"),
    ("`RelationalDistillLoss`", "MultipleNegativesRanking"): ("distill", "mnrl"),
    ("`StarbucksLoss(mini_batch_size=32)`", "MultipleNegativesRanking"): ("starbucks-cached", "mnrl"),
}
# The five search sets by the share of layers that embed the queries: a report's heading and row.
SHALLOW = [
    *[("all-MiniLM-L6-v2", "384", "cut"), ("all-MiniLM-L6-v2", "384", "aligned"), ("all-MiniLM-L6-v2", "64", "aligned")],
    *[("all-MiniLM-L6-v2", "64", 'rotation="search"'), ("all-mpnet-base-v2", "768", "cut")],
    *[("all-mpnet-base-v2", "768", "aligned"), ("all-mpnet-base-v2", "64", 'rotation="keep"')],
    ("all-mpnet-base-v2", "64", "aligned"),
]
HALVES = {"all-MiniLM-L6-v2": "3L-384d", "all-mpnet-base-v2": "6L-768d", "multilingual-e5-small": "6L-384d"}
CODES = [("float32", 384), ("int8", 384), ("int8", 64), ("binary by the mean, float32 queries", 384)]
CODES.append(("binary by the mean, float32 queries", 128))
MAPS = ["Procrustes", "Procrustes, centred", "align_into, units=0", "align_into"]


def reported(file: str, heading: str = "") -> dict[str, list[str]]:
    """Return the rows of a report's table by their names, without the spread over seeds; "" names the head."""
    text = (RESULTS / file).read_text(encoding="utf-8").split(f"\n## {heading}\n" if heading else "\n", 1)[1]
    (table, *_) = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    rows = [[re.sub(r" ± .*", "", cell.strip()) for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {"": rows[0], **{name: cells for name, *cells in rows[2:]}}


def papers() -> Cells:
    """Return the mean over the ladder and the full size, on two models and in the papers."""
    rows = [["", *(f"{where}, {what}" for where in ("MiniLM", "MPNet", "paper") for what in ("mean", "full"))]]
    minilm, mpnet = (
        [reported(f"{folder}/README.md", f"{suite}: by size, mean of the tasks") for folder in folders]
        for suite, folders in (("sts", MINILM), ("ladder", MPNET))
    )
    for shown, method in METHODS.items():
        paper = minilm[0].get(f"*{method}: paper*", [""] * 7)
        cells = (found(minilm, method), found(mpnet, method), paper)
        rows.append([shown, *(row[place] for row in cells for place in (6, 5))])
    return rows


def found(reports: Sequence[dict[str, list[str]]], method: str) -> list[str]:
    """Return a method's row from the report that has it."""
    most, ends, slow = reports
    if method == "MIPIC":
        return slow[method]
    return (ends if "aligned" in method or method not in most else most)[method]


def kept(folder: str, sts: str) -> Cells:
    """Return scores over the ladder, and in brackets their share of the untrained full size."""
    sizes = reported(f"{folder}/README.md", f"{sts}: by size, mean of the tasks")[""][1:-1]
    rows = [["", *sizes]]
    for name, suite, method in (
        ("STS, aligned", sts, "cut_aligned"),
        ("STS, trained", sts, RECIPE.replace(",", "").replace(" ", "_")),
        ("search, aligned", "retrieval", "cut_aligned"),
        ("classification, aligned", "classification", "cut_aligned"),
    ):
        scores = by_size(folder, suite, method)
        whole = by_size(folder, suite, "cut")[sizes[-1]]
        rows.append([name, *(f"{scores[size]:.1f} ({scores[size] / whole:.0%})" for size in sizes)])
    return rows


def by_size(folder: str, suite: str, method: str) -> pd.Series:
    """Return the mean over tasks and seeds at each size."""
    scores = pd.concat(map(pd.read_csv, (RESULTS / folder / "scores").glob(f"{suite}.{method}.?.csv")))
    return scores.groupby(scores["num_layers"].astype(str) + "L-" + scores["dim"].astype(str) + "d")["score"].mean()


def cuts(table: str, sizes: Sequence[str], ways: Iterable[str]) -> Cells:
    """Return STS and search at some sizes; a star marks a difference to alignment that is more than chance."""
    shown: dict[str, dict[tuple[str, str], str]] = {"STS": {}, "search": {}}
    for kind, file in (("STS", "baselines/sts.csv"), ("search", "baselines/search/search.csv")):
        with (RESULTS / file).open(encoding="utf-8", newline="") as cells:
            for cell in csv.DictReader(cells):
                star = "*" if float(cell["low"]) > 0 or float(cell["high"]) < 0 else ""
                if cell["table"] == table:
                    shown[kind][cell["way"], cell["size"]] = f"{float(cell['score']):.1f}{star}"
    head = ["", *(f"{kind}, {size}" for kind in shown for size in sizes)]
    return [head, *([way, *(cells[way, size] for cells in shown.values() for size in sizes)] for way in ways)]


def steps() -> Cells:
    """Return how long a training step takes, relative to another loss."""
    files = {
        "minilm-cpu": "6 x 384",
        "bert-base-cpu": "12 x 768",
        "minilm-cuda": "6 x 384, GPU",
        "bert-base-cuda-bf16": "12 x 768, GPU",
    }
    ratios = []
    for name in files:
        times = json.loads((RESULTS / "train_step" / f"{name}.json").read_text(encoding="utf-8"))["time_table"]
        ratios.append({(time["loss"], time["peer"]): f"{time['ratio']:.2f}" for time in times})
    return [
        ["Loss", "against", *files.values()],
        *([*names, *(of.get(pair, "") for of in ratios)] for names, pair in LOSSES.items()),
    ]


def peers() -> Cells:
    """Return the ways of `benchmarks/peers.py` that the page discusses."""
    table = reported("peers/README.md")
    return [table[""], *([way, *table[way]] for way in WAYS)]


def aligned() -> Cells:
    """Return STS over the ladder and search by half the layers, cut and aligned, on three models."""
    rows = [["", *(f"{kind}, {way}" for kind in ("STS", "search") for way in ("cut", "aligned")), "search, whole model"]]
    for model, half in HALVES.items():
        sts = reported(f"alignment/{model}/sts.md", "STS")
        search = reported(f"alignment/{model}/search.md", f"Search, {half[3:-1]} dims")
        place = search[""].index(half) - 1
        found = [*(sts[way][-1] for way in ("cut", "aligned")), *(search[way][place] for way in ("cut", "aligned"))]
        rows.append([model, *found, search["cut"][-2]])
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
    for code, dim in CODES:
        found = scores[(scores["code"] == code) & (scores["dim"] == dim)].set_index("layers")
        name = "one bit" if code.startswith("binary") else code
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
    for kind, way in itertools.product(("sts", "search"), ("cut, first layers", "aligned")):
        shown = {"sts": "sentence similarity", "search": "search"}[kind]
        cells = []
        for model, half in HALVES.items():
            heading = f"STS, all {half[3:-1]} dims" if kind == "sts" else f"Search, {half[3:-1]} dims"
            table = reported(f"alignment/{model}/{kind}.md", heading)
            cells.append(100 * float(table[way][table[""].index(half) - 1]) / float(table["cut"][-2]))
        name = "half the layers, aligned" if way == "aligned" else "the first half of the layers, as it is"
        rows.append([f"{shown}: {name}", *(f"{cell:.0f}" for cell in cells)])
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


def keywords() -> Cells:
    """Return the means of search by words, by a token table, by all layers and by model2vec."""
    report = reported("queries/all-MiniLM-L6-v2-keywords.md")
    names = [name for name in report if name and "256" not in name]
    return [["all-MiniLM-L6-v2", "nDCG@10"], *([name, report[name][-1]] for name in names)]


TABLES = {
    "what half the layers keep": halves,
    "methods of the papers": papers,
    "all-MiniLM-L6-v2 by size": lambda: kept(MINILM[1], "sts"),
    "all-mpnet-base-v2 by size": lambda: kept(MPNET[1], "ladder"),
    "fewer dims": lambda: cuts("Fewer dims, all layers", ["6L-32d", "6L-64d", "6L-128d"], WIDTHS),
    "fewer layers": lambda: cuts("Fewer layers, all dims", ["2L-384d", "3L-384d", "4L-384d"], DEPTHS),
    "fewer layers and dims": lambda: cuts("The ladder", ["2L-32d", "3L-64d", "4L-128d"], CUTS),
    "other ways": peers,
    "time of a step": steps,
    "aligned, three models": aligned,
    "queries by few layers": shallow,
    "bytes of a vector": codes,
    "another model's index": maps,
    "queries without layers": tables_for_queries,
    "beside keywords": keywords,
}
