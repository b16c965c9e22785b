"""The cells of the tables on public tasks."""

from __future__ import annotations

import pandas as pd
from reports import RESULTS, Cells, reported

__all__ = ["leaderboard", "public_first", "public_index", "public_rivals", "unseen_tables"]

MODEL = "all-MiniLM-L6-v2"
SETS = {"scifact": "SciFact", "mlquestions": "MLQuestions"}
# Heading, share of the documents in the fit, and whether those of the scored queries were.
SPLITS = [("all", 1.0, "seen"), ("half: seen", 0.5, "seen"), ("half: unseen", 0.5, "unseen")]
# What the table of rivals calls the ways of `unseen.py`, which are fitted on half of the documents.
FITTED = {
    "fit_queries": "token table: `fit_queries`",
    "table, trained": "table trained to the vectors",
    "table, trained to rank": "table trained to rank",
    "align": "half of the layers: `align`",
    "align, then trained": "`align`, then trained",
    "LEAF": "LEAF's recipe, as many steps",
}


def leaderboard() -> Cells:
    """Return published scores and those measured here."""
    table = reported("leaderboard/README.md")
    return [table[""], *([name, *cells] for name, cells in table.items() if name)]


def unseen_tables() -> Cells:
    """Return what token tables keep by the documents in the fit."""
    table = _fits().query("verb == 'fit_queries'")
    rows = [[MODEL, *(heading for heading, *_ in SPLITS)]]
    for name, shown in SETS.items():
        for count, of_count in table[table["set"] == name].groupby("questions"):
            kept = of_count.set_index(["share", "part"])["kept"]
            cells = [_percent(kept.get((share, part))) for _, share, part in SPLITS]
            rows.append([f"{shown}, {count:,} real questions", *cells])
    return rows


def public_rivals() -> Cells:
    """Return what each way to a cheap query side keeps, of queries whose documents were in the fit, and of others."""
    scores = pd.read_csv(RESULTS / "rivals" / f"{MODEL}.csv")
    rows = [[MODEL, *(f"{name}{part}" for name in SETS.values() for part in ("", ", unseen"))]]
    for way, of_way in scores.groupby("way", sort=False):
        kept = of_way.set_index("set")["kept"]
        rows.append([str(way), *(cell for name in SETS for cell in [_percent(kept.get(name))] * 2)])
    table = _fits().query("share == 0.5")
    for verb, shown in FITTED.items():
        of_verb = table[table["verb"] == verb]
        most = of_verb[of_verb["questions"] == of_verb.groupby("set")["questions"].transform("max")]
        kept = most.set_index(["set", "part"])["kept"]
        if len(kept):
            rows.append([shown, *(_percent(kept.get((name, part))) for name in SETS for part in ("seen", "unseen"))])
    return rows


def public_first() -> Cells:
    """Return the rows of these rivals that a reader of the README asks for first."""
    head, *rows = public_rivals()
    shown = [FITTED["align"], FITTED["fit_queries"], "BM25", "wordllama for both", "model2vec for both"]
    return [head, *(row for way in shown for row in rows if row[0] == way)]


def public_index() -> Cells:
    """Return what an index of fewer bytes keeps."""
    table = pd.read_csv(RESULTS / "index_bytes" / f"{MODEL}.csv")
    kept = table.set_index(["set", "way", "bytes"])["kept"]
    sizes = sorted(table["bytes"].unique(), reverse=True)
    rows = [["", *(f"{name}, {size:,}" for name in SETS.values() for size in sizes)]]
    for way in table["way"].unique():
        rows.append([str(way), *(_percent(kept.get((name, way, size))) for name in SETS for size in sizes)])
    return rows


def _fits() -> pd.DataFrame:
    return pd.read_csv(RESULTS / "unseen" / f"{MODEL}.csv")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1f}"
