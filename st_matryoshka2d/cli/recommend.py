"""`recommend`: which size to ship."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.checkpoints import GridOrModel
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.tables import HOW_TO_TIME, read_times, records, table_of

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

_MIN_SCORE = 0.97
_SHOWN = 10

_SHARE = "Share of the largest size's score, or of its agreement, to keep."
_REFERENCE = "Grid of the model before training; --min-score is then a share of its largest size's score."
_QUERIES = "Queries per document in an index's life; chooses separate sizes for queries and documents."
_TIMES = options.file_option("--latency", "Times written by the command latency", (".csv", ".json"), exists=True)
_OF_DOCUMENTS = "Times of documents, where --latency has those of queries"
_DOCUMENT_TIMES = options.file_option("--document-latency", _OF_DOCUMENTS, (".csv", ".json"), exists=True)


def recommend(
    *,
    min_score: Annotated[float | None, typer.Option(help=_SHARE, show_default=str(_MIN_SCORE))] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Choose the best score within the other limits, instead of the cheapest size.")
    ] = False,
    max_ms: Annotated[float | None, typer.Option(help="Maximum milliseconds per text; needs times.")] = None,
    max_bytes: Annotated[float | None, typer.Option(help="Maximum bytes per vector.")] = None,
    task: Annotated[str | None, typer.Option(help="Judge by this task alone.", show_default="the mean over tasks")] = None,
    metric: options.Metric = None,
    reference: Annotated[Path | None, typer.Option(help=_REFERENCE, exists=True, dir_okay=False)] = None,
    queries_per_document: Annotated[float | None, typer.Option(help=_QUERIES)] = None,
    latency: Annotated[Path | None, _TIMES] = None,
    document_latency: Annotated[Path | None, _DOCUMENT_TIMES] = None,
    source: GridOrModel,
) -> Answer:
    """Choose the cheapest size of a grid, or of an aligned model, that is good enough and within the budget.

    For example:

        st-matryoshka2d recommend grid.parquet --latency times.csv --max-ms 10
    """
    if best and min_score is not None:
        raise typer.BadParameter("Give --best or --min-score, not both.")
    if best and max_ms is None and max_bytes is None:
        raise typer.BadParameter("--best needs --max-ms, --max-bytes or both.")
    if document_latency is not None and (latency is None or queries_per_document is None):
        raise typer.BadParameter("--document-latency needs --latency and --queries-per-document.")

    from st_matryoshka2d import GridResult
    from st_matryoshka2d.grid.costs import name_of
    from st_matryoshka2d.grid.grid_tables import AXES

    scores = source.grid()
    of_documents = scores.document_sizes
    if queries_per_document is None and len(of_documents) > 1 and AXES["documents"] not in of_documents:
        raise typer.BadParameter(
            f"The grid has several document sizes, {', '.join(of_documents)}: --queries-per-document chooses one for "
            "queries and one for documents."
        )
    if latency is not None:
        documents = None if document_latency is None else read_times(document_latency, set())
        times = read_times(latency, {size.num_layers for size in scores.sizes})
        scores = scores.with_latency(times, documents=documents)
    if max_ms is not None and scores.latency is None:
        raise ValueError(f"--max-ms needs the times of the model: give --latency a file with them. {HOW_TO_TIME}")
    choice = scores.recommend(
        None if best else _MIN_SCORE if min_score is None else min_score,
        max_ms=max_ms,
        max_bytes=max_bytes,
        task=task,
        metric=metric,
        reference=None if reference is None else GridResult.load(reference),
        queries_per_document=queries_per_document,
    )
    sizes = choice.to_frame()
    more = [f"{len(sizes) - _SHOWN} more sizes; --json has all."] if len(sizes) > _SHOWN else []
    largest = "reference" if reference else name_of(choice.full)
    about = {"size": str(choice.size), "documents": str(choice.documents), "precision": choice.precision}
    about |= {"measure": choice.measure, "summary": str(choice)}
    shown = _table(sizes.head(_SHOWN), choice.measure, largest)
    return Answer([str(choice), shown, *more], {**about, "sizes": records(sizes)})


def _table(sizes: pd.DataFrame, measure: str, largest: str) -> Table:
    timed = sizes["milliseconds_per_text"].notna().any()
    columns = {
        "layers": "{num_layers}",
        "dim": "{dim}",
        "precision": "{precision}",
        **({"documents": "{documents}"} if "documents" in sizes else {}),
        measure: "{score:.2f}",
        f"of {largest}": "{relative:.1f} %",
        **({"at least": "{relative_low:.1f} %"} if sizes["relative_low"].notna().any() else {}),
        **({"ms per text": "{milliseconds_per_text:.2f}"} if timed else {}),
        **({"ms in all": "{milliseconds_in_all:.1f}"} if "milliseconds_in_all" in sizes else {}),
        "bytes": "{bytes}",
        "refused": "{refused}",
    }
    shares = ["score", "relative", "relative_low"]
    in_percent = sizes.assign(**{name: sizes[name] * 100 for name in shares})
    return table_of(in_percent.to_dict("records"), columns, texts=("precision", "documents", "refused"))
