"""The table of `unseen.py` as Markdown."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from measure import markdown

from public.sets import TASKS

__all__ = ["COLUMNS", "KEY", "written"]

KEY = ["model", "set", "verb", "share", "questions"]
COLUMNS = [*KEY, "part", "asked", "whole", "ndcg", "kept", "documents", "seconds"]


def written(table: pd.DataFrame, file: Path) -> None:
    """Write the shares of one model, a table for each verb."""
    about = (
        "Share (%) of the whole model's nDCG@10 on the same queries, documents by the whole model. Seen: the relevant "
        "documents were in the fit, unseen: they were not. 0 % of the documents: those of other sets instead. "
        "Questions are real ones that are not asked. Written by `benchmarks/unseen.py`."
    )
    report = [f"# {table['model'].iloc[0]}: documents in the fit, and others", about]
    for verb, of_verb in table.groupby("verb", sort=False):
        report += [f"## {verb}", *(_section(of_verb[of_verb["set"] == name], name) for name in TASKS)]
    file.write_text("\n\n".join(part for part in report if part) + "\n", encoding="utf-8")


def _section(rows: pd.DataFrame, name: str) -> str:
    """Put one set's shares into a row for each number of questions."""
    if rows.empty:
        return ""
    columns = rows[["share", "part"]].drop_duplicates().sort_values(["share", "part"], ascending=[False, True])
    head = [f"{100 * share:.0f} %, {part}" for share, part in columns.itertuples(index=False)]
    cells = [[TASKS[name], *head]]
    for count, of_count in rows.groupby("questions"):
        found = of_count.set_index(["share", "part"])["kept"]
        scores = [found.get(column) for column in columns.itertuples(index=False, name=None)]
        cells.append([f"{count:,} questions", *("" if score is None else f"{score:.1f}" for score in scores)])
    return "\n".join(markdown(cells))
