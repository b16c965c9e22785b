"""Tables side by side with the papers', and maps of differences, from the scores of all that was run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from reproduction.methods import CUT, SEPARATE
from reproduction.papers import STARBUCKS_BY_RUNG, STARBUCKS_BY_SET
from st_matryoshka2d import GridResult

__all__ = ["file_of", "read", "write"]

MAPS = [("Starbucks", "2DMSE"), ("Starbucks", CUT), ("Starbucks and distillation", "Starbucks")]


def file_of(folder: Path, suite: str, method: str, seed: int) -> Path:
    """Where the scores of one run are kept."""
    return folder / f"{suite}.{method.replace(' ', '_')}.{seed}.csv"


def read(folder: Path) -> pd.DataFrame:
    """All scores in a folder: suite, method, seed, task, num_layers, dim, score."""
    frames = []
    for file in sorted(folder.glob("*.csv")):
        suite, method, seed = file.stem.split(".")
        frames.append(pd.read_csv(file).assign(suite=suite, method=method.replace("_", " "), seed=int(seed)))
    return pd.concat(frames, ignore_index=True)


def write(folder: Path, order: list[str], about: str) -> str:
    """Write the tables of all suites, and the maps of the STS sets; returns the tables.

    Args:
        folder: Holds `scores/`; the report goes beside it.
        order: Methods, as they are to be listed.
        about: What was run, in words.
    """
    scores = read(folder / "scores")
    scores["method"] = pd.Categorical(scores["method"], [name for name in order if name in set(scores["method"])])
    ladder = scores.loc[scores["method"] == SEPARATE, ["num_layers", "dim"]].drop_duplicates()
    lines = ["# The papers' tables, here", "", about]
    for suite, of_suite in scores.groupby("suite", sort=False):
        on_ladder = of_suite.merge(ladder) if len(ladder) else of_suite
        rungs = on_ladder["num_layers"].astype(str) + "L-" + on_ladder["dim"].astype(str) + "d"
        sts = suite == "sts"
        lines += ["", f"## {suite}: by size, mean of the tasks", ""]
        lines += table(
            on_ladder.assign(column=rungs), {name: list(row) for name, row in STARBUCKS_BY_RUNG.items()} if sts else {}
        )
        lines += ["", f"## {suite}: by task, mean over the ladder", ""]
        by_set = {name: [row[task] for task in sorted(row)] for name, row in STARBUCKS_BY_SET.items()}
        lines += table(on_ladder.assign(column=on_ladder["task"]), by_set if sts else {})
    draw_maps(scores[scores["suite"] == "sts"], folder)
    text = "\n".join(lines) + "\n"
    (folder / "README.md").write_text(text, encoding="utf-8")
    return text


def table(scores: pd.DataFrame, paper: dict[str, list[float]]) -> list[str]:
    """Markdown: a row for each method, mean and standard deviation over seeds; then the paper's rows."""
    sizes = scores.sort_values(["num_layers", "task"])["column"]
    columns = list(dict.fromkeys(sizes))
    wide = scores.pivot_table(index=["method", "seed"], columns="column", values="score", observed=True)[columns]
    wide["mean"] = wide.mean(axis=1)
    by_method = wide.groupby("method", observed=True)
    cells = by_method.mean().map("{:.1f}".format)
    if (by_method.size() > 1).all():
        cells += " ± " + by_method.std().map("{:.1f}".format)
    rows = [["", *cells.columns], ["---", *["---:"] * cells.shape[1]]]
    rows += [[str(method), *row] for method, row in zip(cells.index, cells.to_numpy().tolist(), strict=True)]
    for method, values in paper.items():
        rows.append([f"*{method}: paper*", *(f"{value:.1f}" for value in [*values, sum(values) / len(values)])])
    return [f"| {' | '.join(row)} |" for row in rows]


def draw_maps(scores: pd.DataFrame, folder: Path) -> None:
    """Differences of two methods at every size (Starbucks' Figures 3-5)."""
    keys = ["method", "task", "num_layers", "dim"]
    means = scores.groupby(keys, observed=True)["score"].mean().reset_index()
    means = means.assign(score=means["score"] / 100, split="test", subset="default", metric="cosine_spearman", is_main=True)
    for method, other in MAPS:
        frames = [means[means["method"] == name].drop(columns="method") for name in (method, other)]
        if all(map(len, frames)):
            first, second = map(GridResult, frames)
            name = f"{method} against {other}"
            first.compare(second).plot(folder / f"{name.replace(' ', '_')}.png", title=name)
