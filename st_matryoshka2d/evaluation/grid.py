"""What an evaluation at many sizes found: a tidy table and the few views of it that people ask for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from st_matryoshka2d.evaluation import choose, front, pivots
from st_matryoshka2d.evaluation.scores import Scores
from st_matryoshka2d.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from st_matryoshka2d.evaluation.compare import GridComparison


@dataclass(frozen=True, eq=False, repr=False)
class GridResult(Scores):
    """Scores of a model at many sizes: a tidy table, and the views of it that people ask for.

    Scores are in mteb's units (0..1 for most metrics); prints and figures are in percent. Of several precisions, truncations
    or sizes of documents, views are of float32 prefixes and documents at the query's own size; `at` gives another one.

    Args:
        frame: One row for each task, split, subset, size and metric; columns `COLUMNS`, and where the grid has them
            `precision`, `truncation` and `documents`. `is_main` marks the metric that the task is judged by.
        items: What the main scores are made of, for tests of significance; columns `ITEM_COLUMNS`. `ids` and `values` are a
            list of names and an array: the main metric of each query, or, where `gold` is an array too, the similarity of
            each pair, whose correlation with `gold` is the score.
        model: Name of the model, for titles; `named` gives another.
        latency: What each depth costs; see `with_latency`.
        revision: Hash of the model's weights and settings; empty where it is not known.
        full_size: Of the model, `"6L-384d"`; empty where it is not known.

    Raises:
        ValueError: Columns are missing or unknown, there are no rows, or a score is there twice.

    Example:
        >>> row = {"task": "T", "split": "test", "subset": "default", "metric": "cosine_spearman", "is_main": True}
        >>> scores = [{"num_layers": 3, "dim": 64, "score": 0.71}, {"num_layers": 6, "dim": 64, "score": 0.785}]
        >>> print(GridResult(pd.DataFrame([row | score for score in scores])))
        T: cosine_spearman, percent
        | layers / dim |    64 |
        | -----------: | ----: |
        |            3 | 71.00 |
        |            6 | 78.50 |
    """

    def compare(
        self, other: GridResult, *, test: str = "auto", alpha: float = 0.05, correction: str | None = "holm"
    ) -> GridComparison:
        """What this grid scores above another, size by size, and whether that is more than chance.

        Args:
            other: Another grid of the same tasks; sizes that both have are compared, or one size of each, `grid.at(...)`.
            test: `"auto"` for a paired t-test of queries, or Steiger's test of correlations with gold scores of pairs;
                `"fisher"` for Fisher's z of correlations, as in Starbucks' Table 4.
            alpha: A difference is significant where p is below.
            correction: `"holm"` adjusts p for the number of tests; None leaves it.

        Raises:
            TypeError: `other` is not a grid.
            ValueError: The two were not scored on the same data, have no size in common, or an argument makes no sense.
        """
        from st_matryoshka2d.evaluation import compare  # here, because reading scores must not cost the import of scipy

        return compare.compare(self, other, test=test, alpha=alpha, correction=correction)

    def to_markdown(self, task: str | None = None, metric: str | None = None) -> str:
        """The pivot as a Markdown table, in percent, and below what else the grid has, and which task lacks sizes."""
        table = pivots.aligned(*pivots.head_and_body(pivots.percent(self.frame, task, metric)))
        return "\n\n".join([table, *pivots.notes(self.frame, task, metric)])

    def to_latex(self, task: str | None = None, metric: str | None = None) -> str:
        """The table of `to_markdown` in LaTeX (package booktabs), with task and metric as its caption."""
        return pivots.latex(self.frame, task, metric)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """The tidy table as CSV, in a file or, without a path, as text."""
        if path is None:
            return self.to_frame().to_csv(index=False)
        replace_file(path, lambda part: self.to_frame().to_csv(part, index=False))
        return None

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        title: str | None = None,
        *,
        task: str | None = None,
        metric: str | None = None,
    ) -> Figure:
        """Heat map: layers upwards, dims to the right, percent in every cell that was scored.

        Args:
            path: Where to save it; the ending (`.png`, `.svg`, `.pdf`) says how. None saves nothing.
            title: None for the name of the task.
            task: As for `pivot`.
            metric: As for `pivot`.
        """
        # Here, because reading scores must not cost the import of matplotlib.
        from st_matryoshka2d.plots.heat_map import heat_map
        from st_matryoshka2d.plots.saving import saved

        title = title if title is not None else pivots.subject([task] if task else self.tasks)
        words = {"title": title, "label": f"{pivots.label(self.frame, task, metric)} (%)"}
        scores, texts = self.pivot(task, metric) * 100, pivots.percent(self.frame, task, metric)
        return saved(path, lambda: heat_map(scores, texts, **words))

    def recommend(
        self,
        min_score: float | None = 0.97,
        *,
        max_ms: float | None = None,
        max_bytes: float | None = None,
        task: str | None = None,
        reference: GridResult | None = None,
        queries_per_document: float | None = None,
    ) -> choose.Recommendation:
        """The size to ship: the cheapest that is good enough and within the budget.

        Cheapest is least time (without latency, fewest layers), then fewest bytes, then best score. Shares are of the score
        at the largest depth and width of the grid, in the precision of most bytes.

        With `queries_per_document`, a pair of sizes is chosen from a grid scored with `documents=`: one for queries, `size`,
        and one for documents, `documents`. The time of a pair is that of a document, which is embedded once, and of
        as many queries.

        Args:
            min_score: Share of the largest size's score to keep. None asks for the best within the other limits instead.
            max_ms: Milliseconds for a text, the `milliseconds_per_text` of the times; needs `with_latency`.
            max_bytes: Bytes of a vector in the index: 4 x dim in float32, 1 x dim in int8, dim / 8 in binary.
            task: Name of one task; None for the mean over tasks.
            reference: Grid whose largest size `min_score` is a share of, such as that of the model before it was trained;
                None for this one.
            queries_per_document: Queries over the life of an index, divided by its documents; needs `with_latency`. None
                compares sizes at which documents have the queries' own size.

        Raises:
            TypeError: A limit is not a number, or the reference no grid.
            ValueError: A limit makes no sense, no size meets all of them, the largest size has no score above 0, there is no
                such task, or the reference has others.
        """
        return choose.recommend(self, min_score, max_ms, max_bytes, task, reference, queries_per_document)

    def pareto(self, cost: str | Sequence[str] | None = None, task: str | None = None) -> pd.DataFrame:
        """The sizes that no other size beats: none is at least as good in score and every cost, and better in one of them.

        Args:
            cost: One or several of `num_layers`, `bytes`, `dim` and, with latency, `milliseconds_per_text` and `parameters`;
                None for the time (layers, without latency) and the bytes of a vector.
            task: Name of one task; None for the mean over tasks.
        """
        return front.pareto(self, cost, task)

    def plot_pareto(
        self,
        path: str | os.PathLike[str] | None = None,
        title: str | None = None,
        *,
        cost: str | None = None,
        task: str | None = None,
    ) -> Figure:
        """Score of every size against one cost, with a line through the best score that each cost buys; others are pale.

        Args:
            path: As for `plot`.
            title: As for `plot`.
            cost: As for `pareto`, but one; None for the time (layers, without latency).
            task: As for `pareto`.
        """
        return front.plot_pareto(self, path, title, cost, task)

    def __str__(self) -> str:
        one = self.narrowed(pivots.shown(self.frame))
        return "\n\n".join([f"{pivots.title(self.frame)}\n{one.to_markdown()}", *pivots.beside(self.frame)])

    __repr__ = __str__
