"""Results of `evaluate_truncations`: prefixes against random subsets, windows and principal components."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.tables import SavedTable
from st_matryoshka2d.grid import pivots
from st_matryoshka2d.grid.grid_result import GridResult
from st_matryoshka2d.grid.grid_tables import AXES
from st_matryoshka2d.sizes import Size, positive_int

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIRST = AXES["truncation"]

_IN_WORDS = {
    "helps": "the first coordinates carry more",
    "hurts": "the first coordinates carry less",
    "no difference": "no difference seen",
    "unknown": "unknown, a score is missing",
}


@dataclass(frozen=True, eq=False, repr=False)
class TruncationResult(SavedTable):
    """Scores of one depth of a model, with dims removed in several ways. Printing it shows the verdict for each dim.

    Relative scores are fractions of the score of the full size; prints and figures are in percent.

    Args:
        grid: Scores at one depth and precision, of prefixes and of at least two random subsets.

    Raises:
        ValueError: The grid has several depths or precisions, or lacks prefixes or random subsets.

    Example:
        >>> row = {"task": "T", "split": "test", "subset": "default", "metric": "cosine_spearman", "is_main": True}
        >>> cells = [(384, "first", 0.8), (96, "first", 0.76), (96, "random-0", 0.71), (96, "random-1", 0.70)]
        >>> scores = [row | {"num_layers": 6, "dim": dim, "truncation": name, "score": score} for dim, name, score in cells]
        >>> print(TruncationResult(GridResult(pd.DataFrame(scores))))
        T, 6 layers: 80.00 at the full 384 dims.
         96 of 384 dims (75 % removed): prefix keeps 95.0 %, random 88.1 % +- 0.9: no difference seen.
        PCA was not scored: it needs pca_texts.
    """

    grid: GridResult

    _file = GridResult._file

    def __post_init__(self) -> None:
        depths = sorted({size.num_layers for size in self.grid.sizes})
        if len(depths) > 1 or len(self.grid.precisions) > 1:
            got = f"layers {depths} and precisions {self.grid.precisions}"
            raise UsageError(f"Truncations can only be compared at one depth and one precision, got {got}.")
        names = self.grid.truncations
        if _FIRST not in names or sum(name.startswith("random-") for name in names) < 2:
            raise UsageError(f"A TruncationResult needs prefixes and at least two random subsets, got {', '.join(names)}.")

    @property
    def full(self) -> Size:
        """The full size, to which scores are relative."""
        return self.grid.at(truncation=_FIRST).sizes[-1]

    def to_frame(self, task: str | None = None) -> pd.DataFrame:
        """One row for each truncation and dim. Random subsets and windows have no row at the full dim.

        Args:
            task: Name of one task; None for the mean over tasks.

        Returns:
            Columns `method` (`"first"`, `"random"`, `"window"` or `"pca"`), `variant` (the seed or
            the start, as text), `dim`, `removed` (rounded percent), `score` (in mteb's units) and
            `relative` (to the full size; NaN if the full size does not score above 0).
        """
        full, rows = self.full, []
        for name in self.grid.truncations:
            method, _, variant = name.partition("-")
            scores = self.grid.at(truncation=name).pivot(task)
            for dim in sorted(map(int, scores.columns), reverse=True):
                rows.append((method, variant, dim, percent_removed(dim, full.dim), scores[dim][full.num_layers]))
        frame = pd.DataFrame(rows, columns=["method", "variant", "dim", "removed", "score"])
        full_score = self.grid.at(truncation=_FIRST).score(full, task)
        return frame.assign(relative=frame["score"] / (full_score if full_score > 0 else np.nan))

    def summary(self, task: str | None = None) -> pd.DataFrame:
        """Mean and spread over the seeds of random subsets, and over windows.

        Args:
            task: As for `to_frame`.

        Returns:
            One row for each method and dim; columns `method`, `dim`, `removed`, `runs` (number of
            subsets or windows), `score` and `relative` (means), and `std` (of the sample; NaN for
            one run), `min` and `max` of `relative`.
        """
        groups = self.to_frame(task).groupby(["method", "dim", "removed"], sort=False)
        # By default pandas skips NaN, which would hide a failed seed.
        mean, std, least, most = (
            groups[["score", "relative"]].agg(name, skipna=False) for name in ("mean", "std", "min", "max")
        )
        return mean.assign(
            runs=groups.size(), std=std["relative"], min=least["relative"], max=most["relative"]
        ).reset_index()[["method", "dim", "removed", "runs", "score", "relative", "std", "min", "max"]]

    def verdict(self, task: str | None = None) -> pd.DataFrame:
        r"""Test for each dim whether the first coordinates carry more than a random subset.

        If the order of coordinates carried no information, the prefix would be one more random
        subset. With mean m and standard deviation s of n seeds, 95 % of new subsets score within
        :math:`m \pm t_{0.975, n-1}\, s \sqrt{1 + 1/n}`.

        Args:
            task: As for `to_frame`.

        Returns:
            One row for each dim below the full one; columns `dim`, `removed`, the relative scores
            `first`, `random` (mean), `std`, `low` and `high` (the interval), and `order`:
            `"helps"`, `"hurts"`, `"no difference"`, or `"unknown"` if a score is missing.
        """
        summary = self.summary(task).set_index(["dim", "removed"])
        first, random = (summary[summary["method"] == method] for method in (_FIRST, "random"))
        table = random[["relative", "std"]].rename(columns={"relative": "random"})
        table.insert(0, "first", first["relative"].reindex(table.index))
        margin = student_t.ppf(0.975, random["runs"] - 1) * random["std"] * np.sqrt(1 + 1 / random["runs"])
        table["low"], table["high"] = table["random"] - margin, table["random"] + margin
        helps, hurts = table["first"] > table["high"], table["first"] < table["low"]
        same = table["first"].between(table["low"], table["high"])
        table["order"] = np.select([helps, hurts, same], ["helps", "hurts", "no difference"], default="unknown")
        return table.reset_index()

    def plot(
        self, path: str | os.PathLike[str] | None = None, title: str | None = None, *, task: str | None = None
    ) -> Figure:
        """Plot relative scores against the percentage of removed coordinates: prefixes as a line, the others as bands.

        Args:
            path: File to save the figure to, as `.png`, `.svg` or `.pdf`; None to only return it.
            title: Title; None for the names of the model and the task.
            task: As for `to_frame`.

        Raises:
            ValueError: The full size does not score above 0.
        """
        from st_matryoshka2d.plots.saving import saved
        from st_matryoshka2d.plots.truncation_curves import truncation_curves

        summary = self.summary(task)
        if summary["relative"].isna().all():
            score = self.grid.at(truncation=_FIRST).score(self.full, task)
            raise UsageError(f"The full size scores {score:.4f}; shares need a score above 0.")
        title = title or pivots.headed(self.grid.model, self._subject(task))
        return saved(path, lambda: truncation_curves(summary, self.full.dim, title=title))

    def __str__(self) -> str:
        full_dim = self.full.dim
        shares = self.summary().set_index(["method", "dim"])["relative"]
        full_score = self.grid.at(truncation=_FIRST).score(self.full)
        lines = [f"{self._subject(None)}: {100 * full_score:.2f} at the full {full_dim} dims."]
        for row in self.verdict().to_dict("records"):
            named = {("window", row["dim"]): "windows", ("pca", row["dim"]): "PCA"}
            others = ", ".join(f"{name} {100 * shares[key]:.1f} %" for key, name in named.items() if key in shares.index)
            lines.append(
                f"{row['dim']:{len(str(full_dim))}} of {full_dim} dims ({row['removed']} % removed): "
                f"prefix keeps {100 * row['first']:.1f} %, random {100 * row['random']:.1f} % "
                f"+- {100 * row['std']:.1f}: {_IN_WORDS[row['order']]}{f' ({others})' if others else ''}."
            )
        if "pca" not in shares.index:
            lines.append("PCA was not scored: it needs pca_texts.")
        return "\n".join(lines)

    __repr__ = __str__

    def _content(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        return self.grid._content()

    @classmethod
    def _of(cls, frame: pd.DataFrame, about: dict[str, Any]) -> Self:
        return cls(GridResult._of(frame, about))

    def _subject(self, task: str | None) -> str:
        return f"{pivots.subject([task] if task else self.grid.tasks)}, {self.full.num_layers} layers"


# Training dims of the paper's models, by width; it scores these in addition to every tenth.
_TRAINED = {768: (512, 256, 128, 64), 1024: (768, 256, 128, 64)}


def truncation_dims(full_dim: int) -> list[int]:
    """Return the dims at which "To MRL or not to MRL" scores a model (Tables 2 to 5), descending."""
    positive_int(full_dim, "full_dim")
    powers = [2**exponent for exponent in range(full_dim.bit_length()) if full_dim / 16 <= 2**exponent < full_dim]
    tenths = [round(full_dim * (10 - tenth) / 10) for tenth in range(10)]
    return sorted({dim for dim in (*tenths, *_TRAINED.get(full_dim, powers)) if dim > 0}, reverse=True)


def percent_removed(dim: int, full_dim: int) -> int:
    """Return the percentage of removed coordinates, rounded as in the headers of the paper's tables."""
    return round(100 * (full_dim - dim) / full_dim)
