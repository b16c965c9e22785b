"""How often does `recommend` propose a size whose true share of the full score is below `min_score`?

    python benchmarks/proposals.py

A model of 6 depths and 6 widths, or of 2 and 2, scores the same examples at each size. Pairs: the
score of a size is the gold score plus an error that all sizes share, one of its depth and one of
its width; "uneven" errors grow with the gold score. The metric is Spearman's correlation. Queries:
the score is the full size's, less a loss that varies over queries, within 0 to 1; the metric is the
mean. True shares come from 300,000 examples. `min_score` is a little above the true share of a
size, where a wrong proposal is likeliest, for several sizes. A proposal is wrong if its true share
is below `min_score`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from measure import markdown
from numpy.typing import NDArray
from scipy import stats

from st_matryoshka2d.grid.grid_tables import Items
from st_matryoshka2d.grid.share_of_full import at_once, resampled_scores

Rows = NDArray[np.float64]

DEPTHS, WIDTHS = [0.55, 0.35, 0.2, 0.1, 0.05, 0.0], [0.5, 0.3, 0.18, 0.1, 0.04, 0.0]
EXAMPLES = [12, 20, 30, 50, 100]
RULES = ["score alone", "interval of each size", "interval of all sizes"]


class Model(NamedTuple):
    """How a model scores: `errors` of its sizes, and the sizes, as indices of depths and widths from cheap to whole."""

    kind: str
    sizes: list[tuple[int, int]]

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Rows | None, Rows]:
        """Return gold scores (None for queries) and the values of each size, shape (sizes, n)."""
        s, shared = rng.normal(size=(2, n))
        of_depth, of_width = rng.normal(size=(2, 6, n))
        if self.kind == "queries":
            loss = np.array([DEPTHS[i] * (0.35 - of_depth[i]) + WIDTHS[j] * (0.35 - of_width[j]) for i, j in self.sizes])
            return None, np.clip(np.round(0.5 + 0.5 * s - 0.6 * loss, 1), 0, 1)
        spread = np.exp(0.5 * s) if self.kind == "pairs, uneven errors" else 1.0
        errors = [0.5 * shared + DEPTHS[i] * of_depth[i] + WIDTHS[j] * of_width[j] for i, j in self.sizes]
        return np.clip(np.round(1.3 * s + 2.5), 0, 5), s + spread * np.array(errors)


def shares(gold: Rows | None, values: Rows) -> Rows:
    """Return the share of each size, of the last one's score."""
    scores = values.mean(axis=1) if gold is None else np.corrcoef(stats.rankdata([gold, *values], axis=1))[0, 1:]
    return np.asarray(scores / scores[-1])


def lower_ends(gold: Rows | None, values: Rows, rng: np.random.Generator) -> list[Rows]:
    """Return what each rule compares with `min_score`."""
    n, given = values.shape[1], shares(gold, values)
    drawn = resampled_scores([Items([""] * n, one, gold) for one in values], "spearman", rng)
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = drawn / drawn[-1]
    each = np.nanquantile(drawn, 0.05, axis=1)
    each[-1] = 1.0
    return [given, each, at_once(given, drawn)[0]]


def simulated(model: Model, runs: int) -> list[dict[str, object]]:
    """Return how often each rule is wrong, and how often it takes the whole model, for each n and `min_score`."""
    true = np.mean([shares(*model.draw(np.random.default_rng(seed), 100_000)) for seed in range(3)], axis=0)
    different = np.sort(true[true < 0.998])
    wanted = np.unique(different[np.linspace(0, len(different) - 1, 8).astype(int)]) + 0.001
    rows = []
    for n in EXAMPLES:
        chosen = np.empty((runs, len(RULES), len(wanted)), dtype=int)
        for run in range(runs):
            rng = np.random.default_rng([n, run])
            for rule, ends in enumerate(lower_ends(*model.draw(rng, n), rng)):
                chosen[run, rule] = [np.argmax(ends >= share) for share in wanted]
        wrong, whole = 100 * np.mean(true[chosen] < wanted, axis=0), 100 * np.mean(chosen == len(true) - 1, axis=0)
        for rule, name in enumerate(RULES):
            for at, share in enumerate(wanted):
                about = {"scores": model.kind, "sizes": len(true), "examples": n, "min_score": share, "rule": name}
                rows.append({**about, "wrong": wrong[rule, at], "whole model": whole[rule, at]})
        print(model.kind, len(true), n, [f"{wrong[rule].max():.1f}" for rule in range(len(RULES))], flush=True)
    return rows


def report(frame: pd.DataFrame, runs: int) -> str:
    """Summarise the table: the worst `min_score` of each cell."""
    by = ["scores", "sizes", "examples"]
    worst = frame.pivot_table(index=by, columns="rule", values="wrong", aggfunc="max", sort=False)[RULES]
    mean = frame.pivot_table(index=by, columns="rule", values="whole model", sort=False)[RULES[-1]]
    rows = [
        [*map(str, key), *(f"{value:.1f}" for value in row), f"{mean[key]:.0f}"]
        for key, row in zip(worst.index, worst.to_numpy(), strict=True)
    ]
    return "\n\n".join(
        [
            "# Wrong proposals",
            f"Written by `benchmarks/proposals.py`, which says how the scores are drawn. {runs:,} runs for each "
            "`min_score`; [all of them](proposals.csv).",
            "A rule proposes the cheapest size whose share, or the lower end of whose interval, reaches `min_score`. The "
            "numbers are the percentage of proposals whose true share is below it, at the worst of eight values of "
            "`min_score`. `recommend` uses the interval of all sizes, from 30 examples on. The last column says how often "
            "this rule proposes the whole model, the mean over `min_score`.",
            "\n".join(markdown([[*by, *RULES, "whole model"], *rows])),
        ]
    )


def main() -> None:
    """Simulate as the command line says, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "proposals")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for kind in ("pairs, even errors", "pairs, uneven errors", "queries"):
        for chosen in (range(6), (3, 5)):
            rows += simulated(Model(kind, [(i, j) for i in chosen for j in chosen]), options.runs)
    frame = pd.DataFrame(rows)
    frame.round(5).to_csv(options.out / "proposals.csv", index=False)
    (options.out / "README.md").write_text(report(frame, options.runs) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
