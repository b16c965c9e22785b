"""Score every size of a model, and choose one: `grid`, `recommend` and `report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from st_matryoshka2d import Size
from st_matryoshka2d.cli.models import open_grid, written
from st_matryoshka2d.cli.options import (
    BatchSize,
    Device,
    GridOrModel,
    Layers,
    Model,
    Revision,
    TextColumn,
    TrustRemoteCode,
    check_writable,
    output_file,
    size_option,
)
from st_matryoshka2d.cli.tables import TABLES, read_columns, read_table
from st_matryoshka2d.errors import UsageError

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

_PAIRS = "Your own pairs of texts with a score of how similar they are"
_LABELLED = "Your own pairs of texts with a label, 1 if they belong together, otherwise 0"
_SEARCH = (
    "Your own search, three files: documents (columns id, text, perhaps title), queries (id, text) "
    "and judgments (query_id, corpus_id, score)"
)
_VALUE = "Column of the scores or labels of pairs; by default score or label."


def grid(
    model: Model,
    task: Annotated[
        list[str] | None, typer.Option(help="mteb task or benchmark, such as NanoBEIR; repeatable.")
    ] = None,
    pairs: Annotated[
        list[Path] | None, typer.Option(help=f"{_PAIRS}: {TABLES}; repeatable.", exists=True)
    ] = None,
    labelled_pairs: Annotated[
        list[Path] | None, typer.Option(help=f"{_LABELLED}: {TABLES}; repeatable.", exists=True)
    ] = None,
    text_column: TextColumn = None,
    value_column: Annotated[str | None, typer.Option(help=_VALUE)] = None,
    search: Annotated[
        tuple[Path, Path, Path] | None, typer.Option(help=f"{_SEARCH}: {TABLES}.", exists=True)
    ] = None,
    size: Annotated[
        list[Size] | None,
        size_option("A size such as 6L-128d, instead of layers by dims; repeatable."),
    ] = None,
    num_layers: Annotated[
        list[int] | None, typer.Option(help="Layers to keep; repeatable; by default all.")
    ] = None,
    dim: Annotated[
        list[int] | None,
        typer.Option(help="Dimensions to keep; repeatable; by default 8, 16, 32, ... and all."),
    ] = None,
    layers: Layers = None,
    document_size: Annotated[
        list[Size] | None,
        size_option("Size of the documents, such as 6L-384d, for queries of every size."),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(help="Of stored vectors: float32 (default), int8, binary, ...; repeatable."),
    ] = None,
    times: Annotated[
        bool, typer.Option("--times", help="Also time each depth, on a batch of English texts.")
    ] = False,
    batch_size: BatchSize = 32,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results, with which a killed run continues.", file_okay=False
        ),
    ] = None,
    out: Annotated[Path | None, output_file("Save the grid", ".parquet", ".json")] = None,
    plot: Annotated[Path | None, output_file("Draw it", ".png", ".svg", ".pdf")] = None,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Score a model at many sizes; each text runs through the model only once.

    For example:

        st-matryoshka2d grid all-MiniLM-L6-v2 --task STSBenchmark --out grid.parquet
    """
    if not (task or pairs or labelled_pairs or search):
        raise UsageError("Say what to score on: --task, --pairs, --labelled-pairs or --search.")
    if cache is not None:
        check_writable(cache / "result")
    columns = text_column or ["sentence1", "sentence2"]
    if len(columns) != 2:
        raise UsageError(f"Pairs have two columns of texts; --text-column gives {columns}.")
    scored, labelled = value_column or "score", value_column or "label"
    scored_tables = {path: read_columns(path, columns, scored) for path in pairs or []}
    labelled_tables = {path: read_columns(path, columns, labelled) for path in labelled_pairs or []}
    search_tables = [read_table(path) for path in search or []]

    from st_matryoshka2d import (
        benchmark_latency,
        evaluate,
        load,
        pair_task,
        retrieval_task,
        sts_task,
    )

    one, other = columns
    named: dict[str, Any] = {"sentence1": one, "sentence2": other}
    tasks: list[Any] = list(task or [])
    for path, table in scored_tables.items():
        tasks.append(_made(path, sts_task, table, score=scored, **named))
    for path, table in labelled_tables.items():
        tasks.append(_made(path, pair_task, table, label=labelled, **named))
    if search:
        tasks.append(_made(search[0], retrieval_task, *search_tables))
    opened = load(model, device=device, revision=revision, trust_remote_code=trust_remote_code)
    result = evaluate(
        opened,
        tasks,
        num_layers,
        dim,
        size,
        layers=layers,
        documents=document_size,
        precisions=precision or "float32",
        cache=cache,
        batch_size=batch_size,
    )
    typer.echo(result)
    if times:
        table = benchmark_latency(opened, sizes=result.sizes, batch_size=batch_size)
        result = result.with_latency(table)
        typer.echo(f"\n{table.to_string(index=False)}")
    if out is not None:
        result.save(out)
        written(out)
    if plot is not None:
        result.plot(plot)
        written(plot)


def _made(path: Path, make: Callable[..., AbsTask], *tables: Any, **columns: str) -> AbsTask:
    """Make a task that is called as its file; name the file in what the library refuses."""
    try:
        return make(*tables, **columns, name=path.stem)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error


def recommend(
    grid: GridOrModel,
    min_score: Annotated[
        float | None,
        typer.Option(help="Share of the largest size's score to keep; by default 0.97."),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best score within the limits, not the cheapest.")
    ] = False,
    max_ms: Annotated[
        float | None, typer.Option(help="Most milliseconds for a text; needs `grid --times`.")
    ] = None,
    max_bytes: Annotated[float | None, typer.Option(help="Most bytes for a vector.")] = None,
    task: Annotated[
        str | None, typer.Option(help="Judge by this task; by default by the mean over tasks.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Such as mrr_at_10; by default each task's main metric.")
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Grid of another model, of whose score the shares are.", exists=True),
    ] = None,
    queries_per_document: Annotated[
        float | None,
        typer.Option(help="Over an index's life: choose a size for queries and one for documents."),
    ] = None,
) -> None:
    """Choose the cheapest size of a grid that is good enough and within the limits.

    For example:

        st-matryoshka2d recommend grid.parquet --min-score 0.95 --max-bytes 512
    """
    if best and min_score is not None:
        raise UsageError("Give --best or --min-score, not both.")

    from st_matryoshka2d import GridResult

    choice = open_grid(grid).recommend(
        None if best else 0.97 if min_score is None else min_score,
        max_ms=max_ms,
        max_bytes=max_bytes,
        task=task,
        metric=metric,
        reference=None if reference is None else GridResult.load(reference),
        queries_per_document=queries_per_document,
    )
    typer.echo(choice)


def report(
    grid: Annotated[list[str], typer.Argument(help="One or several that `grid` saved.")],
    out: Annotated[Path, output_file("The page", ".html")],
    title: Annotated[str | None, typer.Option(help="By default the models and tasks.")] = None,
) -> None:
    """Show grids side by side as one page that opens without a network.

    For example:

        st-matryoshka2d report grid.parquet --out report.html
    """
    shown = [open_grid(name) for name in grid]
    if len({each.model for each in shown}) < len(shown):  # the names would not tell them apart
        shown = [each.named(Path(name).stem) for each, name in zip(shown, grid, strict=True)]
    shown[0].report(out, beside=shown[1:], title=title)
    written(out)
