"""The report: tables and figures of all runs, next to the papers' scores."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from reproduction.figures import draw_depths, draw_grids, draw_maps, draw_truncations
from reproduction.methods import ALIGNED, ALL_DIMS, BEST, BY_SIZE, CUT, FOR_LADDER, PRETRAINED, SEPARATE
from reproduction.papers import ABLATIONS_BY_SIZE, STARBUCKS_BY_RUNG, STARBUCKS_BY_SET, STARBUCKS_MRR
from reproduction.suites import STS
from reproduction.tables import ablations, comparison, differences, kept

__all__ = ["file_of", "write"]

PAIRS = [
    *[("Starbucks", "2DMSE"), ("Starbucks", SEPARATE), ("Starbucks", ALL_DIMS), (SEPARATE, ALL_DIMS)],
    (PRETRAINED, "Starbucks"),
    *[("distillation with labels", "Starbucks"), ("distillation with labels", SEPARATE)],
    *ALIGNED.items(),
    *[(BEST, other) for other in (f"{CUT}, aligned", "Starbucks", SEPARATE)],
    *[(method, method.removesuffix(" for the ladder")) for method in FOR_LADDER],
]
MAPS = [
    *[("Starbucks", CUT), ("Starbucks", "2DMSE"), (f"{CUT}, aligned", CUT), (BEST, "Starbucks")],
    *[("2DMSE", ALL_DIMS), ("Starbucks", ALL_DIMS), (PRETRAINED, "Starbucks")],
]
DEPTHS = {
    "sts": "sts: all dims",
    "across": "sts: one text at n layers, the other at all, all dims",
    "retrieval_across": "retrieval: queries at n layers, documents at all, all dims",
}
WIDTHS = {"sts": "sts: all layers", "pairs": "pairs: all layers", "classification_widths": "classification, F1: all layers"}
COMPARED = ["sts", "ladder", "retrieval", "mrr", "classification", "pairs", "choosing"]
TITLES = {"mrr": "retrieval, MRR@10"}
PAPER_BY_RUNG = {"sts": STARBUCKS_BY_RUNG, "ladder": STARBUCKS_BY_RUNG, "mrr": STARBUCKS_MRR}
PAPER_BY_TASK = {"sts": STARBUCKS_BY_SET, "ladder": STARBUCKS_BY_SET}
ABLATED_ON = {"2DMSE": STS, "Starbucks": ["stsb"], "MIPIC": ["sts12"]}


def file_of(folder: Path, suite: str, method: str, seed: int | str) -> Path:
    """Return the file that holds the scores of one run; a seed of "?" makes a pattern of names."""
    return folder / f"{suite}.{_in_file_name(method)}.{seed}.csv"


def _in_file_name(method: str) -> str:
    return method.replace(",", "").replace(" ", "_")


def read(folder: Path, order: list[str]) -> pd.DataFrame:
    """Read all scores in a folder: suite, method, seed, task, num_layers, dim, score."""
    frames, methods = [], {_in_file_name(method): method for method in order}
    for file in sorted(folder.glob("*.csv")):
        suite, method, seed = file.stem.split(".")
        frames.append(pd.read_csv(file).assign(suite=suite, method=methods[method], seed=int(seed)))
    scores = pd.concat(frames, ignore_index=True)
    scores["method"] = pd.Categorical(scores["method"], [name for name in order if name in set(scores["method"])])
    return scores.assign(size=scores["num_layers"].astype(str) + "L-" + scores["dim"].astype(str) + "d")


def write(folder: Path, order: list[str], ladder: list[str], about: str) -> str:
    """Write the report and return its text.

    Args:
        folder: Contains `scores/`; the report is written here.
        order: Methods, in the order of the rows.
        ladder: Sizes to compare methods at.
        about: A sentence about the run.
    """
    scores = read(folder / "scores", order)
    lines = ["# The papers' tables, reproduced", "", about]
    for suite in [name for name in COMPARED if name in set(scores["suite"])]:
        lines += compared(scores[scores["suite"] == suite], suite, ladder)
    sts, truncated = (scores[scores["suite"] == suite] for suite in ("sts", "truncation"))
    lines += by_depth(scores) + by_width(scores) + by_truncation(truncated)
    left_out = ablations(sts, ABLATIONS_BY_SIZE, ABLATED_ON)
    lines += ["", "## What leaving a part out changes, in points", "", *left_out] if left_out else []
    draw_maps(sts, MAPS, folder)
    draw_grids(sts, [f"{CUT}, aligned", BEST], folder)
    draw_depths(sts[~sts["method"].isin(ABLATIONS_BY_SIZE)], folder)
    if len(truncated):
        draw_truncations(truncated, [CUT, "full size", "MRL", "Starbucks", BEST], folder)
    text = "\n".join(lines) + "\n"
    (folder / "README.md").write_text(text, encoding="utf-8")
    return text


def by_depth(scores: pd.DataFrame) -> list[str]:
    """Build the tables with a column per depth, at the full width."""
    wide = scores[(scores["dim"] == scores["dim"].max()) & ~scores["method"].isin([*BY_SIZE, *ABLATIONS_BY_SIZE])]
    lines: list[str] = []
    for suite, title in DEPTHS.items():
        part = wide[wide["suite"] == suite].sort_values("num_layers")
        if len(part):
            column = part["num_layers"].astype(str) + "L"
            lines += ["", f"## {title}, mean of the tasks", "", *comparison(part.assign(column=column), {})]
    return lines


def by_width(scores: pd.DataFrame) -> list[str]:
    """Build the tables with a column per width, at the full depth (MIPIC's Tables 1 and 2)."""
    deep = scores[
        (scores["num_layers"] == scores["num_layers"].max()) & ~scores["method"].isin([*BY_SIZE, *ABLATIONS_BY_SIZE])
    ]
    lines: list[str] = []
    for suite, title in WIDTHS.items():
        part = deep[deep["suite"] == suite].sort_values("dim")
        if len(part):
            column = part["dim"].astype(str) + "d"
            lines += ["", f"## {title}, by dims, mean of the tasks", "", *comparison(part.assign(column=column), {})]
    return lines


def by_truncation(truncated: pd.DataFrame) -> list[str]:
    """Build the tables with a column per width: the first coordinates, and the mean of random subsets."""
    lines: list[str] = []
    if truncated.empty:
        return lines
    for kind, title in {"first": "the first dims", "random": "random dims, mean of three draws"}.items():
        part = truncated[truncated["truncation"].str.startswith(kind)].sort_values("dim", ascending=False)
        if len(part):
            column = part["dim"].astype(str) + "d"
            lines += ["", f"## truncation: {title}, mean of the tasks", "", *comparison(part.assign(column=column), {})]
    return lines


def compared(scores: pd.DataFrame, suite: str, ladder: list[str]) -> list[str]:
    """Build the tables of one suite over the ladder."""
    rungs = scores[scores["size"].isin(ladder) & ~scores["method"].isin(ABLATIONS_BY_SIZE)].copy()
    rungs = rungs.sort_values(["size", "task"], key=lambda of: of.map(ladder.index) if of.name == "size" else of)
    rungs["column"] = rungs["size"]
    by_rung, by_task = PAPER_BY_RUNG.get(suite, {}), PAPER_BY_TASK.get(suite, {})
    tasks = sorted(rungs["task"].unique())
    of_tasks = {name: [row[task] for task in tasks] for name, row in by_task.items()}
    gaps, shares = differences(rungs, PAIRS, by_rung), kept(rungs, CUT)
    title = TITLES.get(suite, suite)
    return [
        *("", f"## {title}: by size, mean of the tasks", ""),
        *comparison(rungs, by_rung),
        *("", f"## {title}: by task, mean over the sizes", ""),
        *comparison(rungs.assign(column=rungs["task"]), of_tasks),
        *(["", f"## {title}: share of the untrained full size", "", *shares] if shares else []),
        *(["", f"## {title}: differences in points", "", *gaps] if gaps else []),
    ]
