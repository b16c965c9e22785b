"""The result of an evaluation at many sizes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pandas as pd

from st_matryoshka2d.grid import pareto_front, pivots, recommend
from st_matryoshka2d.grid.from_agreement import agreement_of
from st_matryoshka2d.grid.grid_data import Scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from sentence_transformers import SentenceTransformer

    from st_matryoshka2d.grid.comparison import GridComparison


@dataclass(frozen=True, eq=False, repr=False)
class GridResult(Scores):
    """Scores of a model at many sizes, with methods to view, compare, plot and save them.

    It is a table of layers by dims, or one for each precision, truncation and document size: views
    show that of float32, prefixes and documents at the size of the query, and `at` selects others.
    Scores are in mteb's units (0..1 for most metrics); prints and figures are in percent.

    Args:
        frame: One row for each task, split, subset, size and metric; columns `task`, `split`,
            `subset`, `num_layers`, `dim`, `metric`, `score`, `is_main` (marks the main metric of
            the task), and optionally `precision`, `truncation` and `documents`.
        items: Scores of single queries or pairs, for significance tests: one row for each main
            score, with `ids`, `values` and `gold`. `values` are the metric of each query, or, if
            there is `gold`, the similarity of each pair. With the column `metric`, rows may also be
            of other metrics, with the ids of the main score.
        model: Name of the model, for titles; `named` changes it.
        latency: Times of each depth; see `with_latency`.
        revision: Hash of the model's weights and settings; empty if unknown.
        full_size: Full size of the model, such as `"6L-384d"`; empty if unknown.
        layers: Which layers the sizes keep: `"first"` or `"ends"`, as for `truncate`, or a list for
            each depth; None for the model's own.

    Raises:
        ValueError: Columns are missing or unknown, there are no rows, or a score is repeated.

    Example:
        >>> row = {"task": "T", "split": "test", "subset": "default", "metric": "cosine_spearman", "is_main": True}
        >>> scores = [{"num_layers": 3, "dim": 64, "score": 0.71}, {"num_layers": 6, "dim": 64, "score": 0.785}]
        >>> print(GridResult(pd.DataFrame([row | score for score in scores])))
        T: cosine_spearman, percent
        layers / dim     64
        3             71.00
        6             78.50
    """

    @classmethod
    def from_agreement(cls, model: SentenceTransformer) -> Self:
        """Return what `align` measured without labels, as a grid: how well each size agrees with the full size.

        The agreement of a size is the correlation of a text's similarities to other texts by this
        size with those by the full size, as the mean over texts that were left out of the fit. It
        is 1 for the full size, in a cut for that of the model that it was cut from.

        Args:
            model: A model that was aligned, or a cut of one.

        Raises:
            TypeError: The model is not a `SentenceTransformer`.
            ValueError: It was not aligned, or a loss of this package has trained it since.

        Example:
            >>> from st_matryoshka2d import align
            >>> things = ["a cat", "my car", "rain", "the piano", "soup", "a tall tree"]
            >>> ends = ["at home", "in town", "today", "again", "is good"]
            >>> aligned = align(model, [f"{thing} {end}" for thing in things for end in ends])
            >>> grid = GridResult.from_agreement(aligned)
            >>> grid.score("6L-384d")
            1.0
            >>> print(grid.recommend(0.5).share_of)  # chooses layers; narrow sizes agree on a scale of their own
            the agreement of 6L-384d (the full size)
        """
        return cls(**agreement_of(model))

    def compare(
        self,
        other: GridResult,
        *,
        metric: str | None = None,
        test: str = "auto",
        alpha: float = 0.05,
        correction: str | None = "holm",
    ) -> GridComparison:
        """Compare with another grid, size by size, with significance tests.

        A significant difference is one that other examples of the same kind would show as well. It
        says nothing about another training run of the same model, with another seed.

        Args:
            other: Another grid of the same tasks. All common sizes are compared, or one size of
                each, chosen with `at`.
            metric: As for `pivot`. Tests need the metric of each query, which `evaluate` keeps of
                the main metric and of `ndcg_at_10`, `mrr_at_10` and `recall_at_100`.
            test: `"auto"` for a paired t-test over queries, or a paired jackknife test of the
                correlations with gold scores of pairs; `"fisher"` for Fisher's z test of
                correlations, as in Starbucks' Table 4.
            alpha: Significance level.
            correction: `"holm"` to correct p for the number of tests; None for no correction.

        Raises:
            TypeError: `other` is not a grid.
            ValueError: The grids were not scored on the same data or have no size in common, or an
                argument is invalid.
        """
        from st_matryoshka2d.grid import compare

        return compare.compare(self, other, metric, test=test, alpha=alpha, correction=correction)

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        title: str | None = None,
        *,
        task: str | None = None,
        metric: str | None = None,
    ) -> Figure:
        """Plot a heat map with layers and dims as in the tables, in percent.

        Args:
            path: File to save the figure to, as `.png`, `.svg` or `.pdf`; None to only return it.
            title: Title; None for the names of the model and the task.
            task: As for `pivot`.
            metric: As for `pivot`.
        """
        # imports matplotlib, which reading scores does not need
        from st_matryoshka2d.plots.heat_map import heat_map
        from st_matryoshka2d.plots.saving import saved

        title = pivots.titled(self.model, self.tasks, task) if title is None else title
        label = f"{pivots.label(self.frame, task, metric)} (%)"
        scores, texts = self.pivot(task, metric) * 100, pivots.percent(self.frame, task, metric)
        return saved(path, lambda: heat_map(scores, texts, title, label, pivots.rows_name(self.frame)))

    def recommend(
        self,
        min_score: float | None = 0.97,
        *,
        max_ms: float | None = None,
        max_bytes: float | None = None,
        max_megabytes: float | None = None,
        task: str | None = None,
        metric: str | None = None,
        reference: GridResult | None = None,
        queries_per_document: float | None = None,
        cost: str | None = None,
    ) -> recommend.Recommendation:
        """Choose the size to ship: the cheapest one that is good enough and within the budget.

        The cheapest size has the least time (without latency: the fewest layers), then the fewest
        bytes, then the best score. It keeps enough of the score of the largest size if the lower end
        of its share's interval reaches `min_score`: intervals come from resampling the examples of
        the grid, and hold for all sizes at once, with 95 % confidence. A grid `from_agreement` has
        none: it chooses layers alone, with as many dims as `max_bytes` allows.

        Args:
            min_score: Fraction of the largest size's score to keep. None: the best score within the
                other limits.
            max_ms: Milliseconds per text, as in `milliseconds_per_text`; needs `with_latency`.
            max_bytes: Bytes of a vector in the index: 4 x dim in float32, dim in int8, dim / 8 in
                binary.
            max_megabytes: Millions of bytes of a file, as in the `megabytes` of
                `benchmark_latency`: of a checkpoint, or with its `int8=True` of an exported graph.
                Needs `with_latency`.
            task: Name of one task; None for the mean over tasks.
            metric: As for `pivot`. Intervals need the metric of each query, as for `compare`.
            reference: Grid to which scores are relative, such as that of the model before training;
                None for this grid.
            queries_per_document: Expected queries over the life of the index, divided by its
                documents; needs `with_latency`. It chooses a pair of sizes from a grid scored with
                `documents=`, by the time of a document and its queries; `asymmetric` joins them in
                one model. None: documents have the size of the query, or the one of the grid.
            cost: What counts first, one of the costs of `pareto`: `"bytes"` for the smallest
                vector, `"megabytes"` for the smallest file. None for the time.

        Raises:
            TypeError: A limit is not a number, or the reference is not a grid.
            ValueError: A limit is invalid, no size meets all limits, the largest size does not
                score above 0, there is no such task or metric, a task has fewer than 30 examples,
                or the reference has other tasks.

        Warns:
            DataWarning: The grid has no scores of single examples, so that scores alone decide.
        """
        limits = min_score, max_ms, max_bytes, max_megabytes
        return recommend.recommend(self, *limits, task, reference, queries_per_document, metric, cost)

    def pareto(
        self, cost: str | Sequence[str] | None = None, task: str | None = None, metric: str | None = None
    ) -> pd.DataFrame:
        """The sizes on the Pareto front: no other size is at least as good in score and every cost, and better in one.

        Args:
            cost: One or several of `num_layers`, `bytes`, `dim` and, with latency,
                `milliseconds_per_text` and `parameters`; None for the time (layers, without
                latency) and the bytes of a vector.
            task: As for `recommend`.
            metric: As for `pivot`.
        """
        return pareto_front.pareto(self, cost, task, metric)

    def plot_pareto(
        self,
        path: str | os.PathLike[str] | None = None,
        title: str | None = None,
        *,
        cost: str | None = None,
        task: str | None = None,
        metric: str | None = None,
    ) -> Figure:
        """Plot the score of every size against one cost, with a line through the Pareto front.

        Args:
            path: As for `plot`.
            title: As for `plot`.
            cost: One cost, as for `pareto`; None for the time (layers, without latency).
            task: As for `pareto`.
            metric: As for `pivot`.
        """
        return pareto_front.plot_pareto(self, path, title, cost, task, metric)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        beside: Sequence[GridResult] = (),
        title: str | None = None,
        min_score: float = 0.97,
        max_ms: float | None = None,
        max_bytes: float | None = None,
        max_megabytes: float | None = None,
        reference: GridResult | None = None,
    ) -> None:
        """Write one page of HTML that shows the grid, opens offline, and can be sent to others.

        It has a heat map of the mean over tasks, and scores against every cost that all grids have.
        Sliders set the share of the score to keep and the bytes of a vector: the page marks the size
        that `recommend` returns for these, and says it in the same words.

        Args:
            path: File to write, `.html`; some hundred kilobytes.
            beside: Other grids of the same tasks, such as those of other models, to show side by
                side, in one scale of colours.
            title: Title; None for the names of the models and the tasks.
            min_score: As for `recommend`: where its slider stands at first.
            max_ms: As for `recommend`.
            max_bytes: As for `recommend`: where its slider stands at first.
            max_megabytes: As for `recommend`.
            reference: As for `recommend`.

        Raises:
            ImportError: Jinja is not installed; `pip install 'st_matryoshka2d[report]'`.
            ValueError: The file is not `.html`, the grids have different tasks or the same name,
                or `recommend` refuses, as with fewer than 30 examples.

        Example:
            >>> row = {"task": "T", "split": "test", "subset": "default", "metric": "ndcg_at_10", "is_main": True}
            >>> scores = {(3, 128): 0.60, (6, 128): 0.79, (6, 384): 0.84}
            >>> rows = [row | {"num_layers": n, "dim": d, "score": score} for (n, d), score in scores.items()]
            >>> GridResult(pd.DataFrame(rows)).report("report.html", title="Three sizes")
        """
        # imports Jinja, which reading scores does not need
        from st_matryoshka2d.grid.report_views import write_report

        write_report(self, path, beside, title, min_score, max_ms, max_bytes, max_megabytes, reference)

    def __str__(self) -> str:
        shown = self.narrowed(pivots.shown(self.frame)).frame
        head = f"{pivots.subject(self.tasks)}: {pivots.label(self.frame)}, percent"
        notes = [*pivots.notes(shown), *pivots.counts_note(pivots.example_counts(self.items))]
        kept = pivots.layers_by_depth(self.layers, self.sizes, self.full_size)
        notes += [*pivots.hidden_notes(self.frame), *pivots.layers_note(kept)]
        return "\n\n".join([f"{head}\n{pivots.table_text(pivots.percent(shown), pivots.rows_name(shown))}", *notes])

    __repr__ = __str__
