"""Tables in Markdown: scores of methods and papers, differences between two methods, and ablations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from measure import markdown
from scipy.stats import ttest_1samp

__all__ = ["ablations", "alike", "comparison", "differences", "kept"]


def comparison(scores: pd.DataFrame, paper: Mapping[str, Sequence[float]]) -> list[str]:
    """Build a row per method, with mean and standard deviation over seeds, then the paper's rows.

    Args:
        scores: method, seed, column (of the table, in order of appearance), score.
        paper: The paper's scores by method, one for each column.
    """
    columns = list(dict.fromkeys(scores["column"]))
    wide = scores.pivot_table(index=["method", "seed"], columns="column", values="score", observed=True)[columns]
    wide["mean"] = wide.mean(axis=1)
    by_method = wide.groupby("method", observed=True)
    means, spreads = by_method.mean(), by_method.std()
    rows = [["", *wide.columns]]
    for method in means.index:
        cells = zip(means.loc[method], spreads.loc[method], strict=True)
        rows.append([str(method), *(f"{mean:.1f}" + ("" if pd.isna(std) else f" ± {std:.1f}") for mean, std in cells)])
    for method, values in paper.items():
        rows.append([f"*{method}: paper*", *(f"{value:.1f}" for value in [*values, sum(values) / len(values)])])
    return markdown(rows)


def differences(scores: pd.DataFrame, pairs: list[tuple[str, str]], paper: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the differences between two methods at each size, in points; no lines if no pair was run.

    A star marks p < 0.05 in a paired t-test over the tasks, on means over the seeds that both
    methods have.

    Args:
        scores: method, seed, task, column (a size), score.
        pairs: Pairs of methods; the second is subtracted from the first.
        paper: The paper's scores by method, one for each size.
    """
    columns = list(dict.fromkeys(scores["column"]))
    rows = [["", *columns, "mean"]]
    for method, other in pairs:
        both = alike(scores, method, other)
        if both.empty:
            continue
        by_task = both.pivot_table(index="task", columns=["method", "column"], values="score", observed=True)
        gaps = pd.DataFrame(by_task[method][columns] - by_task[other][columns])
        gaps["mean"] = gaps.mean(axis=1)
        chances = np.asarray(ttest_1samp(gaps, 0).pvalue)
        cells = [f"{gap:+.1f}{'*' if p < 0.05 else ''}" for gap, p in zip(gaps.mean(axis=0), chances, strict=True)]
        rows.append([f"{method} - {other}", *cells])
        if method in paper and other in paper:
            theirs = [one - another for one, another in zip(paper[method], paper[other], strict=True)]
            rows.append([f"*{method} - {other}: paper*", *(f"{gap:+.1f}" for gap in [*theirs, sum(theirs) / len(theirs)])])
    return markdown(rows) if len(rows) > 1 else []


def ablations(scores: pd.DataFrame, paper: dict[str, dict[str, float]], tasks: dict[str, list[str]]) -> list[str]:
    """Return the effect of removing a component, in points, here and in the paper; no lines if no ablation was run.

    Args:
        scores: method, seed, task, size, score.
        paper: The paper's changes by ablation and size; an ablation's name starts with the method's
            name.
        tasks: By method, the tasks whose mean the paper reports.
    """
    rows = [["", "size", "here", "paper"]]
    for name, by_size in paper.items():
        method = name.replace(",", " ").split()[0]
        both = alike(scores[scores["task"].isin(tasks[method])], name, method)
        means = both.groupby(["method", "size"], observed=True)["score"].mean()
        if len(both):
            gaps = [means[name, size] - means[method, size] for size in by_size]
            rows += [
                [name, size, f"{gap:+.2f}", f"{theirs:+.2f}"]
                for (size, theirs), gap in zip(by_size.items(), gaps, strict=True)
            ]
    return markdown(rows) if len(rows) > 1 else []


def kept(scores: pd.DataFrame, untrained: str) -> list[str]:
    """Return each size's score in percent of the untrained full size; no lines if that was not scored.

    Args:
        scores: method, seed, task, num_layers, dim, size, column, score.
        untrained: The method without training.
    """
    full = scores[(scores["dim"] == scores["dim"].max()) & (scores["num_layers"] == scores["num_layers"].max())]
    whole = full.loc[full["method"] == untrained, "score"].mean()
    columns = list(dict.fromkeys(scores["column"]))
    wide = scores.pivot_table(index="method", columns="column", values="score", observed=True)[columns] / whole
    rows = [["", *columns], *([str(method), *(f"{share:.1%}" for share in shares)] for method, shares in wide.iterrows())]
    return [] if pd.isna(whole) else markdown(rows)


def alike(scores: pd.DataFrame, *methods: str) -> pd.DataFrame:
    """Return the scores of these methods for the seeds that all of them have."""
    seeds = set.intersection(*(set(scores.loc[scores["method"] == method, "seed"]) for method in methods))
    return scores[scores["method"].isin(methods) & scores["seed"].isin(seeds)]
