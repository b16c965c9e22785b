"""The cells of the tables on public tasks."""

from __future__ import annotations

import pandas as pd
from reports import RESULTS, Cells, reported

__all__ = [
    "choices",
    "elsewhere",
    "healed",
    "leaderboard",
    "of_half",
    "other_sets",
    "public_index",
    "public_rivals",
    "shallow",
    "unseen_tables",
]

MODELS = {"all-MiniLM-L6-v2": 6, "all-mpnet-base-v2": 12, "multilingual-e5-small": 12}  # layers
SETS = {"scifact": "SciFact", "mlquestions": "MLQuestions"}
# Heading, share of the documents in the fit, and whether those of the scored queries were.
SPLITS = [("all", 1.0, "seen"), ("half: seen", 0.5, "seen"), ("half: unseen", 0.5, "unseen")]
# What the table of rivals calls the ways of `unseen.py`, which are fitted on half of the documents.
FITTED = {
    "fit_queries": "token table: `fit_queries`",
    "table, trained": "table trained to the vectors",
    "table, trained to rank": "table trained to rank",
    "not aligned": "half of the layers, no fit",
    "heal": "half of the layers: `heal`",
    "align": "half of the layers: `align`",
    "align, then trained": "half of the layers: `align`, then trained",
    "LEAF": "half of the layers: LEAF's recipe, as many steps",
}
SHALLOW = {"1/6": "align, 1/6", "1/3": "align, 1/3", "1/2": "align", "2/3": "align, 2/3", "5/6": "align, 5/6"}
# Columns of the README: verbs of `unseen.py`, and ways of `rivals.py`.
FITS = {"first and last layers": "not aligned", "healed": "heal", "aligned": "align", "token table": "fit_queries"}
WORDS = {"BM25": "BM25", "wordllama": "wordllama for both"}


def leaderboard() -> Cells:
    """Return published scores and those measured here."""
    table = reported("leaderboard/README.md")
    return [table[""], *([name, *cells] for name, cells in table.items() if name)]


def of_half() -> Cells:
    """Return what half of the layers, no layer, and others keep of queries whose documents no fit has read."""
    rows = [["", *FITS, *WORDS]]
    for model in MODELS:
        fits, others = _of_half(model), _rivals(model)
        for name, shown in SETS.items():
            cells = [fits.get((name, verb, "unseen")) for verb in FITS.values()]
            cells += [others.get((name, way)) for way in WORDS.values()]
            rows.append([f"{model}: {shown}", *("" if cell is None else f"{cell:.0f}" for cell in cells)])
    return rows


def healed() -> Cells:
    """Return what half of the layers keep, healed, beside those layers as they are and aligned."""
    verbs = {name: verb for name, verb in FITS.items() if verb != "fit_queries"}
    rows = [["", *verbs]]
    for model in MODELS:
        fits = _of_half(model)
        for name, shown in SETS.items():
            if (name, "heal", "unseen") in fits:
                rows.append([f"{model}: {shown}", *(_percent(fits.get((name, verb, "unseen"))) for verb in verbs.values())])
    return rows


def elsewhere() -> Cells:
    """Return what half of the layers keep of sentences and classes, fitted to everyday sentences."""
    table = reported("half_elsewhere/all-MiniLM-L6-v2.md")
    return [table[""], *([name, *cells] for name, cells in table.items() if name)]


def unseen_tables() -> Cells:
    """Return what token tables keep by the documents in the fit, on all models."""
    rows = [["", "real questions", *(heading for heading, *_ in SPLITS)]]
    for model in MODELS:
        table = _fits(model).query("verb == 'fit_queries' and share in [0.5, 1]")
        for name, shown in SETS.items():
            for count, of_count in table[table["set"] == name].groupby("questions"):
                kept = of_count.set_index(["share", "part"])["kept"]
                cells = [_percent(kept.get((share, part))) for _, share, part in SPLITS]
                rows.append([f"{model}: {shown}", f"{count:,}", *cells])
    return rows


def other_sets() -> Cells:
    """Return what token tables keep by the share of the documents that are in the fit, of those that are not."""
    model = next(iter(MODELS))
    table = _fits(model).query("verb == 'fit_queries' and part == 'unseen'")
    shares = sorted(table["share"].unique(), reverse=True)
    rows = [[model, "real questions", *(f"{share:.0%}" if share else "none of this set" for share in shares)]]
    for name, shown in SETS.items():
        for count, of_count in table[table["set"] == name].groupby("questions"):
            kept = of_count.set_index("share")["kept"]
            if 0.1 not in kept:
                continue
            rows.append([shown, f"{count:,}", *(_percent(kept.get(share)) for share in shares)])
    return rows


def shallow() -> Cells:
    """Return what queries by ever more layers keep, aligned on half of the documents or not, of those in the other half."""
    rows = [["Queries by", *SHALLOW]]
    for model in MODELS:
        fits = _of_half(model)
        for name, shown in SETS.items():
            cells = [fits.get((name, verb, "unseen")) for verb in SHALLOW.values()]
            if any(cell is not None for cell in cells):
                plain = [fits.get((name, verb.replace("align", "not aligned"), "unseen")) for verb in SHALLOW.values()]
                rows.append([f"{model}: {shown}, not aligned", *map(_percent, plain)])
                healed = [fits.get((name, verb.replace("align", "heal"), "unseen")) for verb in SHALLOW.values()]
                if any(cell is not None for cell in healed):
                    rows.append([f"{model}: {shown}, healed", *map(_percent, healed)])
                rows.append([f"{model}: {shown}, aligned", *map(_percent, cells)])
    return rows


def public_rivals() -> Cells:
    """Return what each way to a cheap query side keeps, of queries whose documents were in the fit, and of others."""
    models = {model: _rivals(model) for model in MODELS}
    columns = [(model, name) for model, found in models.items() for name in SETS if (name, "BM25") in found]
    rows = [["", *(f"{model.split('-')[1]}, {SETS[name]}" for model, name in columns)]]
    ways = dict.fromkeys(way for found in models.values() for _, way in found)
    for way in ways:
        rows.append([way, *(_percent(models[model].get((name, way))) for model, name in columns)])
    fits = {model: _of_half(model) for model in MODELS}
    for verb, shown in FITTED.items():
        for part, told in {"seen": "documents in the fit", "unseen": "documents not in the fit"}.items():
            cells = [fits[model].get((name, verb, part)) for model, name in columns]
            if any(cell is not None for cell in cells):
                rows.append([f"{shown}, {told}", *map(_percent, cells)])
    return rows


def choices() -> Cells:
    """Return the mean share of STS-B and search that choices of layers keep, with nothing fitted."""
    rows = [["", "first", "half and half", "most like the whole", "best of all", "its layers"]]
    for model, total in MODELS.items():
        if (table := _free(model)).empty:
            continue
        table["mean"] = table[["STS-B", *SETS.values()]].mean(axis=1)
        for depth, of_depth in table[~table.index.str.endswith("aligned")].groupby("depth"):
            named = {choice: layers for at, choice, layers in _named(model) if at == depth}
            named["best"] = str(of_depth["mean"].idxmax())
            cells = [
                f"{of_depth['mean'][named[name]]:.1f}" for name in ("first", "half and half", "most like the whole", "best")
            ]
            rows.append([f"{model}: {depth} of {total}", *cells, named["best"].replace(",", ", ")])
    return rows


def public_index() -> Cells:
    """Return what an index of fewer bytes keeps."""
    table = pd.read_csv(RESULTS / "index_bytes" / "all-MiniLM-L6-v2.csv")
    kept = table.set_index(["set", "way", "bytes"])["kept"]
    sizes = sorted(table["bytes"].unique(), reverse=True)
    rows = [["bytes", *(f"{size:,}" for size in sizes)]]
    for name, title in SETS.items():
        for way in table["way"].unique():
            rows.append([f"{title}, {way}", *(_percent(kept.get((name, way, size))) for size in sizes)])
    return rows


def _fits(model: str) -> pd.DataFrame:
    return pd.read_csv(RESULTS / "unseen" / f"{model}.csv")


def _free(model: str) -> pd.DataFrame:
    """Return the shares of choices of layers, by layers, of models that were measured."""
    file = RESULTS / "layer_splits" / f"{model}.csv"
    return pd.read_csv(file).set_index("layers") if file.exists() else pd.DataFrame(columns=["depth"])


def _of_half(model: str) -> dict[tuple[str, str, str], float]:
    """Return the shares by set, verb and part, with half of the documents and at most 5,000 questions in the fit."""
    table = _fits(model).query("share == 0.5 and questions <= 5000")
    most = table[table["questions"] == table.groupby(["set", "verb"])["questions"].transform("max")]
    return dict(zip(zip(most["set"], most["verb"], most["part"], strict=True), most["kept"], strict=True))


def _rivals(model: str) -> dict[tuple[str, str], float]:
    file = RESULTS / "rivals" / f"{model}.csv"
    table = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["set", "way", "kept"])
    return dict(zip(zip(table["set"], table["way"], strict=True), table["kept"], strict=True))


def _named(model: str) -> list[tuple[int, str, str]]:
    """Return depths, names of choices, and the layers that they stand for."""
    lines = (RESULTS / "layer_splits" / f"{model}.md").read_text(encoding="utf-8").splitlines()
    _, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|"))
    return [(int(row[0]), row[1], row[2].replace(" ", "").replace(",aligned", ", aligned")) for row in rows]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1f}"
