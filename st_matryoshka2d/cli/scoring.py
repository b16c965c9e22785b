"""Score every size of a model, and choose one: `grid`, `recommend` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from st_matryoshka2d import Size
from st_matryoshka2d.cli.models import open_grid, written
from st_matryoshka2d.cli.options import (
    VECTORS,
    BatchSize,
    Device,
    GridOrModel,
    Layers,
    Model,
    Revision,
    TrustRemoteCode,
    check_writable,
    input_file,
    output_file,
    size_option,
)
from st_matryoshka2d.cli.own_tasks import own_files, task_of
from st_matryoshka2d.errors import UsageError

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

    from st_matryoshka2d import GridResult

_TASK = typer.Option(help="mteb task or benchmark, such as NanoBEIR.")
_PAIRS = input_file("Your own pairs of texts with a score of how similar they are")
_LABELLED = input_file("Your own pairs of texts with a label, 1 if they belong together, or 0")
_TEXT = typer.Option(help="Column of the texts of pairs, given twice; by default sentence1 and sentence2.")
_VALUE = typer.Option(help="Column of the scores or labels of pairs; by default score or label.")
_SEARCH = input_file(
    "Your own search, three files: documents (columns id, text, perhaps title), queries (id, text) "
    "and judgments (query_id, corpus_id, score)"
)
_SIZE = size_option("Such as 6L-128d, instead of all pairs of layers and dimensions.")
_NUM_LAYERS = typer.Option(help="Layers to keep; by default all numbers.")
_DIM = typer.Option(help="Dimensions to keep; by default 8, 16, 32, ... and all.")
_DOCUMENTS = size_option("Size of documents, such as 6L-384d, for queries of every size.")
_EMBEDDINGS = input_file("Embeddings of the documents of --search that exist, in their order", VECTORS)
_PRECISION = typer.Option(help="Of stored vectors: float32 (the default), int8, binary, ...")
_TIMES = typer.Option(help="Also time each depth: on one query alone, or on a batch of texts.")
_INT8 = typer.Option("--int8", help="Count the megabytes of an ONNX file in 8 bits, not of a checkpoint, with `--times`.")
_CACHE = typer.Option(help="Folder for results, so that a killed run continues.", file_okay=False)
_OUT = output_file("Save the grid, for `recommend` and `report`", ".parquet", ".json")
_PLOT = output_file("Draw the grid as a heat map", ".png", ".svg", ".pdf")


def grid(
    model: Model,
    task: Annotated[list[str] | None, _TASK] = None,
    pairs: Annotated[list[Path] | None, _PAIRS] = None,
    labelled_pairs: Annotated[list[Path] | None, _LABELLED] = None,
    text_column: Annotated[list[str] | None, _TEXT] = None,
    value_column: Annotated[str | None, _VALUE] = None,
    search: Annotated[tuple[Path, Path, Path] | None, _SEARCH] = None,
    size: Annotated[list[Size] | None, _SIZE] = None,
    num_layers: Annotated[list[int] | None, _NUM_LAYERS] = None,
    dim: Annotated[list[int] | None, _DIM] = None,
    layers: Layers = None,
    document_size: Annotated[list[Size] | None, _DOCUMENTS] = None,
    embeddings: Annotated[Path | None, _EMBEDDINGS] = None,
    precision: Annotated[list[str] | None, _PRECISION] = None,
    times: Annotated[Literal["query", "batch"] | None, _TIMES] = None,
    int8: Annotated[bool, _INT8] = False,
    batch_size: BatchSize = 32,
    cache: Annotated[Path | None, _CACHE] = None,
    out: Annotated[Path | None, _OUT] = None,
    plot: Annotated[Path | None, _PLOT] = None,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Score a model at many sizes, each text in one pass.

    For example:

        st-matryoshka2d grid all-MiniLM-L6-v2 --task STSBenchmark --out grid.parquet
    """
    if cache is not None:
        check_writable(cache)
    own = own_files(pairs, labelled_pairs, search, text_column, value_column)
    if not (task or own):
        raise UsageError("Say what to score on: --task, --pairs, --labelled-pairs or --search.")

    from st_matryoshka2d import evaluate, load

    tasks: list[AbsTask | str] = [*(task or []), *(task_of(*files) for files in own)]
    opened = load(model, device=device, revision=revision, trust_remote_code=trust_remote_code)
    result = evaluate(
        opened,
        tasks,
        num_layers,
        dim,
        size,
        layers=layers,
        documents=document_size,
        embeddings=embeddings,
        precisions=precision or "float32",
        cache=cache,
        batch_size=batch_size,
    )
    typer.echo(result)
    if times is not None:
        result = _timed(result, opened, batch_size=1 if times == "query" else batch_size, int8=int8)
    if out is not None:
        result.save(out)
        written(out)
    if plot is not None:
        result.plot(plot)
        written(plot)


def _timed(result: GridResult, model: Any, batch_size: int, int8: bool) -> GridResult:
    """Time the depths of a grid, and print the times."""
    from st_matryoshka2d import benchmark_latency

    rounds = 100 if batch_size == 1 else 30
    times = benchmark_latency(model, sizes=result.sizes, batch_size=batch_size, rounds=rounds, int8=int8)
    typer.echo(f"\n{times.to_string(index=False)}")
    return result.with_latency(times)


_MIN_SCORE = typer.Option(help="Share of the largest size's score to keep; by default 0.97.")
_BEST = typer.Option("--best", help="Choose the best score within the limits, not the cheapest.")
_MAX_MS = typer.Option(help="Most milliseconds for a text; needs `grid --times`.")
_MAX_BYTES = typer.Option(help="Most bytes for a vector.")
_MAX_MEGABYTES = typer.Option(help="Most millions of bytes for a file; needs `grid --times`.")
_ONE_TASK = typer.Option(help="Judge by this task; by default by the mean over tasks.")
_METRIC = typer.Option(help="Such as mrr_at_10; by default each task's main metric.")
_REFERENCE = typer.Option(help="Grid of the model before; shares are of its score.", exists=True)
_COST = typer.Option(help="What counts first: bytes for the smallest vector, megabytes for the smallest file.")
_QUERIES = "Over an index's life; chooses one size for queries and another for documents."


def recommend(
    grid: GridOrModel,
    min_score: Annotated[float | None, _MIN_SCORE] = None,
    best: Annotated[bool, _BEST] = False,
    max_ms: Annotated[float | None, _MAX_MS] = None,
    max_bytes: Annotated[float | None, _MAX_BYTES] = None,
    max_megabytes: Annotated[float | None, _MAX_MEGABYTES] = None,
    task: Annotated[str | None, _ONE_TASK] = None,
    metric: Annotated[str | None, _METRIC] = None,
    reference: Annotated[Path | None, _REFERENCE] = None,
    queries_per_document: Annotated[float | None, typer.Option(help=_QUERIES)] = None,
    cost: Annotated[str | None, _COST] = None,
) -> None:
    """Choose the cheapest size of a grid that is good enough.

    For example:

        st-matryoshka2d recommend grid.parquet --min-score 0.95 --max-bytes 512
    """
    if best and min_score is not None:
        raise UsageError("Give --best or --min-score, not both.")
    if min_score is None and not best:
        min_score = 0.97

    from st_matryoshka2d import GridResult

    choice = open_grid(grid).recommend(
        min_score,
        max_ms=max_ms,
        max_bytes=max_bytes,
        max_megabytes=max_megabytes,
        task=task,
        metric=metric,
        reference=None if reference is None else GridResult.load(reference),
        queries_per_document=queries_per_document,
        cost=cost,
    )
    typer.echo(choice)


_GRIDS = typer.Argument(help="One or several that `grid` saved, or aligned models.")
_TITLE = typer.Option(help="By default the names of the models and tasks.")


def report(
    grid: Annotated[list[str], _GRIDS],
    out: Annotated[Path, output_file("The page", ".html")],
    title: Annotated[str | None, _TITLE] = None,
    min_score: Annotated[float, _MIN_SCORE] = 0.97,
    max_ms: Annotated[float | None, _MAX_MS] = None,
    max_bytes: Annotated[float | None, _MAX_BYTES] = None,
    max_megabytes: Annotated[float | None, _MAX_MEGABYTES] = None,
    reference: Annotated[Path | None, _REFERENCE] = None,
) -> None:
    """Show grids side by side, as one page, which opens at the limits of `recommend`.

    For example:

        st-matryoshka2d report grid.parquet --out report.html
    """
    from st_matryoshka2d import GridResult

    grids = [open_grid(name) for name in grid]
    if len({scores.model for scores in grids}) < len(grids):  # name them by their files
        grids = [scores.named(Path(name).stem) for scores, name in zip(grids, grid, strict=True)]
    grids[0].report(
        out,
        beside=grids[1:],
        title=title,
        min_score=min_score,
        max_ms=max_ms,
        max_bytes=max_bytes,
        max_megabytes=max_megabytes,
        reference=None if reference is None else GridResult.load(reference),
    )
    written(out)
