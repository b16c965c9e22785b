"""The cells of the table on rerankers."""

from __future__ import annotations

import csv

from reports import RESULTS, Cells

__all__ = ["rerankers"]

SETS = {"scifact": "SciFact", "mlquestions": "MLQuestions"}
NAMES = {"first stage": "all-MiniLM-L6-v2 alone", "whole": "whole reranker, 6 layers", "cut": "3 layers"}
METRICS = {"ndcg_at_10": "nDCG@10", "mrr_at_10": "MRR@10"}


def rerankers() -> Cells:
    """Return what a reranker finds among the first documents of a search, whole and with half of its layers."""
    with (RESULTS / "rerankers" / "reranker.csv").open(encoding="utf-8") as file:
        found = {(row["set"], row["model"]): row for row in csv.DictReader(file)}
    columns = [(name, metric) for name in SETS for metric in METRICS]
    rows = [["", *(f"{SETS[name]}, {METRICS[metric]}" for name, metric in columns)]]
    for model in dict.fromkeys(model for _, model in found):
        shown = NAMES.get(model, f"3 layers, {model}")
        rows.append([shown, *(f"{100 * float(found[name, model][metric]):.1f}" for name, metric in columns)])
    return rows
