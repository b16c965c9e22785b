"""How often do the tests of `compare` find a difference between two models that have none, and one that they have?

    python benchmarks/false_alarms.py

Two models score the same items. Gold scores are normal, or in six levels. The score of a model is
the gold score plus an error that both models share and one of its own; its own share of the error
sets how much the two models agree. "Alike" models are exchangeable. Of "unlike" models, one has
even errors and the other has those of the cell, as large as gives both the same correlation. Errors
are multiplied by a function of the gold score s. Where a difference is to be found, errors are
even, and the first model has more of the gold score, so much more that Steiger's test finds about
half of the differences.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from measure import markdown
from numpy.typing import NDArray
from scipy import special, stats

from st_matryoshka2d.grid.significance import correlation_test, paired_t_test
from st_matryoshka2d.plots.style import BLUE, ORANGE, new_figure, plain

Rows = NDArray[np.float64]
# gold scores and those of two models, each of n items
Draw = Callable[[np.random.Generator, int], Rows]

SPREADS: dict[str, Callable[[Rows], Rows]] = {
    "even": np.ones_like,
    "exp(0.8 s)": lambda s: np.exp(0.8 * s),
    "0.2 + |s|": lambda s: 0.2 + np.abs(s),
    "4 above 1": lambda s: np.where(s > 1, 4.0, 1.0),
}
ERRORS: dict[str, Callable[[np.random.Generator, int], Rows]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "t, 3 degrees": lambda rng, n: rng.standard_t(3, size=n),
    "skewed": lambda rng, n: rng.exponential(size=n) - 1,
}
OWN = [0.005, 0.05, 0.3]
ITEMS = [20, 50, 100, 300, 1000]


class Cell(NamedTuple):
    """A simulation: how the scores of two models are drawn."""

    spread: str = "even"
    errors: str = "normal"
    gold: str = "normal"
    rounded: bool = False
    own: float = 0.3
    gain: float = 0.0

    def __call__(self, rng: np.random.Generator, n: int, /) -> Rows:
        """Draw gold scores and those of two models."""
        s, shared, *errors = rng.normal(size=n), *(ERRORS[self.errors](rng, n) for _ in range(3))
        spread = 0.7 * SPREADS[self.spread](s)
        both = math.sqrt(1 - self.own**2) * shared
        models = [
            s * (1 + gain) + spread * (both + self.own * own) for gain, own in zip((self.gain, 0), errors, strict=True)
        ]
        return np.array([levels(s) if self.gold == "six levels" else s, *(np.round(models, 1) if self.rounded else models)])


class Unlike(NamedTuple):
    """Two models with the same correlation: the first has even errors, the second those of the cell, `size` as large."""

    spread: str
    errors: str = "normal"
    gold: str = "normal"
    size: float = 1.0

    def __call__(self, rng: np.random.Generator, n: int, /) -> Rows:
        """Draw gold scores and those of two models."""
        s, shared, first = rng.normal(size=(3, n))
        second = self.size * SPREADS[self.spread](s) * ERRORS[self.errors](rng, n)
        gold = levels(s) if self.gold == "six levels" else s
        return np.array([gold, s + 0.2 * shared + 0.5 * first, s + 0.2 * shared + second])

    def calibrated(self) -> Unlike:
        """Find the size by bisection, on 200,000 items."""
        low, high = 0.01, 5.0
        for _ in range(25):
            middle = self._replace(size=(low + high) / 2)
            ranks = stats.rankdata(middle(np.random.default_rng(0), 200_000), axis=1)
            (_, first, second), *_ = np.corrcoef(ranks)
            low, high = (middle.size, high) if second > first else (low, middle.size)
        return middle


def levels(s: Rows) -> Rows:
    """Round to the levels 0 to 5, as in STS-B."""
    return np.clip(np.round(1.3 * s + 2.5), 0, 5)


def steiger_test(r1: float, r2: float, r12: float, n: int, *, ranks: bool = False) -> float:
    """Steiger's Z* (Psychological Bulletin 87, 1980, equation 14), for ranks with the factor of Bonett and Wright (2000)."""
    if r1 == r2:
        return 1.0
    squared = ((r1 + r2) / 2) ** 2
    spread = (1 - r12) * max(0.0, 2 - squared * (3 - r12)) / (1 - squared) ** 2 * (1 + squared / 2 if ranks else 1)
    with np.errstate(divide="ignore"):
        return float(2 * special.ndtr(-np.abs(np.arctanh(r1) - np.arctanh(r2)) / np.sqrt(spread / (n - 3))))


def p_values(rows: Rows, *, ranks: bool) -> tuple[float, float, float]:
    """Return p of both tests, and the correlation of the models."""
    table = np.asarray(np.corrcoef(stats.rankdata(rows, axis=1) if ranks else rows))
    r1, r2, r12 = float(table[0, 1]), float(table[0, 2]), float(table[1, 2])
    return steiger_test(r1, r2, r12, rows.shape[1], ranks=ranks), correlation_test(*rows, ranks=ranks), r12


def found(draw: Cell | Unlike, n: int, runs: int, *, ranks: bool = True) -> dict[str, float]:
    """Return how often p < 0.05, in percent."""
    rng = np.random.default_rng([n, ranks, *repr(draw).encode()])
    p = np.array([p_values(draw(rng, n), ranks=ranks) for _ in range(runs)])
    steiger, ours = 100 * np.mean(p[:, :2] < 0.05, axis=0)
    return {"correlation of the models": p[:, 2].mean(), "Steiger": steiger, "jackknife": ours}


def alike() -> list[Cell]:
    """Models that differ by chance alone."""
    kinds: list[dict[str, Any]] = [
        *({"spread": spread} for spread in SPREADS),
        *({"errors": errors} for errors in ("t, 3 degrees", "skewed")),
        {"gold": "six levels", "rounded": True},
        {"spread": "exp(0.8 s)", "gold": "six levels"},
        {"spread": "exp(0.8 s)", "errors": "t, 3 degrees"},
    ]
    return [Cell(own=own, **kind) for kind in kinds for own in OWN]


def unlike() -> list[Unlike]:
    """Models with the same correlation but different errors."""
    cells = [Unlike(spread, "t, 3 degrees" if spread == "even" else "normal") for spread in SPREADS]
    return [cell.calibrated() for cell in (*cells, Unlike("exp(0.8 s)", gold="six levels"))]


def half_found(n: int, own: float, *, ranks: bool) -> Cell:
    """Find the gain at which Steiger's test finds half of the differences."""
    low, high = 0.0, 8 * own
    for _ in range(8):
        cell = Cell(own=own, gain=(low + high) / 2)
        few = found(cell, n, 150, ranks=ranks)["Steiger"] < 50
        low, high = (cell.gain, high) if few else (low, cell.gain)
    return cell


def correlations(runs: int) -> pd.DataFrame:
    """Simulate all cells of the two correlations."""
    cells: list[tuple[str, str, Cell | Unlike]] = [("Spearman", "alike", cell) for cell in alike()]
    cells += [("Pearson", "alike", cell) for cell in alike()]
    cells += [("Spearman", "unlike", cell) for cell in unlike()]
    rows = []
    for n in ITEMS:
        better = [
            (metric, "first is better", half_found(n, own, ranks=metric == "Spearman"))
            for metric in ("Spearman", "Pearson")
            for own in OWN
        ]
        for metric, models, cell in [*cells, *better]:
            about = {"metric": metric, "models": models, "items": n, "spread": cell.spread, "errors": cell.errors}
            about |= {"gold": cell.gold, "rounded": getattr(cell, "rounded", False)}
            rows.append({**about, **found(cell, n, runs, ranks=metric == "Spearman")})
            print(*rows[-1].values(), flush=True)
    return pd.DataFrame(rows)


def queries(runs: int) -> pd.DataFrame:
    """Simulate the paired t-test: few queries differ, in few equal scores, or all do."""
    steps = {"0 or 1": [-1.0, 1.0], "quarters": [-1.0, -0.5, -0.25, 0.25, 0.5, 1.0]}
    ways: dict[tuple[str, str], Draw] = {
        (f"{share:.0%}", kind): lambda rng, n, share=share, kind=kind: (  # type: ignore[misc]
            np.where(rng.uniform(size=n) < share, rng.choice(steps[kind], size=n), 0)
        )
        for kind in steps
        for share in (0.02, 0.05, 0.1, 0.3, 0.9)
    }
    ways["100%", "normal"] = lambda rng, n: rng.normal(size=n)
    ways["100%", "t, 3 degrees"] = lambda rng, n: rng.standard_t(3, size=n)
    ways["100%", "a tenth much worse, the others better"] = lambda rng, n: np.where(rng.uniform(size=n) < 0.1, -0.9, 0.1)
    rows = []
    for (differ, kind), draw in ways.items():
        for n in ITEMS[:-1]:
            rng = np.random.default_rng(n)
            drawn = np.array([draw(rng, n) for _ in range(runs)])
            with np.errstate(divide="ignore", invalid="ignore"):
                plain = stats.ttest_1samp(drawn, 0, axis=1).pvalue
            ours = np.array([paired_t_test(one, np.zeros(n)) for one in drawn])
            rates = {"t-test": 100 * np.mean(plain < 0.05), "ours": 100 * np.mean(ours < 0.05)}
            rows.append({"queries": n, "differ": differ, "differences": kind, **rates})
    return pd.DataFrame(rows)


def plot(frame: pd.DataFrame, path: Path) -> None:
    """Draw the false alarms of both tests, a dot for each cell."""
    alarms = frame[(frame["models"] != "first is better") & (frame["metric"] == "Spearman")]
    figure = new_figure(7, 3.2)
    both = figure.subplots(1, 2, sharey=True)
    for axes, test in zip(both, ("Steiger", "jackknife"), strict=True):
        for models, colour, aside in (("alike", BLUE, -0.15), ("unlike", ORANGE, 0.15)):
            rows = alarms[alarms["models"] == models]
            axes.scatter(rows["items"].map(ITEMS.index) + aside, rows[test], s=12, color=colour, label=f"models {models}")
        axes.axhline(5, color="0.5", linewidth=0.8)
        plain(axes, title=test, xlabel="pairs")
        axes.set_xticks(range(len(ITEMS)), [f"{n:,}" for n in ITEMS])
    both[0].set_ylabel("p < 0.05 without a difference (%)")
    both[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def report(frame: pd.DataFrame, of_queries: pd.DataFrame, runs: int) -> str:
    """Summarise both tables."""
    alarms, power = frame[frame["models"] != "first is better"], frame[frame["models"] == "first is better"]
    by = ["metric", "models", "items"]
    worst = alarms.groupby(by, sort=False)[["Steiger", "jackknife"]].agg(["mean", "max"])
    rows = [
        [*map(str, key), *(f"{value:.1f}" for value in row)] for key, row in zip(worst.index, worst.to_numpy(), strict=True)
    ]
    head = [*by, "Steiger, mean", "max", "jackknife, mean", "max"]
    named = power[["metric", "items", "correlation of the models", "Steiger", "jackknife"]]
    found_rows = [[r[0], str(r[1]), f"{r[2]:.5f}", f"{r[3]:.1f}", f"{r[4]:.1f}"] for r in named.itertuples(index=False)]
    of = [[str(r[0]), r[1], r[2], f"{r[3]:.1f}", f"{r[4]:.1f}"] for r in of_queries.itertuples(index=False)]
    error = 100 * math.sqrt(0.05 * 0.95 / runs)
    return "\n\n".join(
        [
            "# False alarms of the tests",
            f"Written by `benchmarks/false_alarms.py`, which says how the scores are drawn. {runs:,} runs a cell; 5% of "
            f"them has a standard error of {error:.1f}. [All cells](correlations.csv), [queries](queries.csv).",
            "![False alarms](false_alarms.png)",
            "## Two models with the same correlation: p < 0.05, percent",
            "\n".join(markdown([head, *rows])),
            "## The first model is better, errors are even: found at p < 0.05, percent",
            "\n".join(markdown([list(named.columns), *found_rows])),
            "## Two models with the same mean over queries: p < 0.05, percent",
            "Ours: the larger p of Student's t and Johnson's t, at least 2^(1-k), where k queries have different scores.",
            "\n".join(markdown([list(of_queries.columns), *of])),
        ]
    )


def main() -> None:
    """Simulate as the command line says, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "false_alarms")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    frame, of_queries = correlations(options.runs), queries(options.runs)
    frame.round(5).to_csv(options.out / "correlations.csv", index=False)
    of_queries.round(5).to_csv(options.out / "queries.csv", index=False)
    plot(frame, options.out / "false_alarms.png")
    (options.out / "README.md").write_text(report(frame, of_queries, options.runs) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
