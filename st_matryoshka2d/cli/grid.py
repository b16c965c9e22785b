"""`grid`: score every size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.checkpoints import Source
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.own_data import SEARCH_FILES, read_pairs, read_search, tasks_of_pairs
from st_matryoshka2d.cli.shape import largest_size
from st_matryoshka2d.cli.tables import records, table_of_cells
from st_matryoshka2d.files.atomic import check_writable_folder
from st_matryoshka2d.sizes import Size, all_within, validate_sizes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from st_matryoshka2d import GridResult

_SCORED, _LABELLED = "sentence1,sentence2,score", "sentence1,sentence2,label"


def _three_names(text: str | None) -> str | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) != 3 or len(set(names) - {""}) != 3:
        expected = f"Name two columns of texts and one of scores or labels, as in {_SCORED}"
        raise typer.BadParameter(f"{expected}; got {text!r}.")
    return ",".join(names)


_TASKS = "Name of an mteb task or benchmark, such as NanoBEIR; may be repeated."
_PAIRS = options.file_option(
    "--pairs", "Your own pairs of texts with similarity scores; may be repeated", (".csv", ".parquet"), exists=True
)
_LABELLED_PAIRS = options.file_option(
    "--labelled-pairs", "Your own pairs of texts with labels 0 and 1; may be repeated", (".csv", ".parquet"), exists=True
)
_SEARCH = options.file_option(
    "--search",
    "Your own documents (columns id, text, perhaps title), queries (id, text) and judgments (query_id, corpus_id, score)",
    SEARCH_FILES,
    exists=True,
    metavar="<3 files>",
)
_NAMES = typer.Option(
    help="Columns of your own pairs: two texts and the score or label.",
    metavar="<a,b,score>",
    callback=_three_names,
    show_default="sentence1,sentence2 and score or label",
)
_DIMS = typer.Option(help="Dimensions to keep; may be repeated.", min=1, show_default="8, 16, 32, ... and all")
_SIZES = options.size_option("A size such as 6L-128d, instead of all pairs of layers and dims; may be repeated.")
_DOCUMENTS = options.size_option(
    "Size of documents, such as 6L-384d, for queries of every size; may be repeated.", show_default="the query's own"
)
_PRECISIONS = typer.Option(
    help="Precision of stored embeddings: float32, int8, binary, ...; may be repeated.", show_default="float32"
)
_CACHE = typer.Option(help="Folder for results; a killed run continues where it stopped.", file_okay=False)
_JOBS = typer.Option(help="Sizes whose classifiers or clusters are fitted in parallel.", min=1)
_WRITE = "Write the grid (recommend and compare read .parquet and .json)"
_OUT = options.file_option("--out", _WRITE, (".parquet", ".json", ".csv"), writable=True)


def grid(
    *,
    tasks: Annotated[list[str] | None, typer.Option(help=_TASKS)] = None,
    pairs: Annotated[list[Path] | None, _PAIRS] = None,
    labelled_pairs: Annotated[list[Path] | None, _LABELLED_PAIRS] = None,
    columns: Annotated[str | None, _NAMES] = None,
    search: Annotated[tuple[Path, Path, Path] | None, _SEARCH] = None,
    num_layers: options.NumLayers = None,
    layers: options.Layers = None,
    dims: Annotated[list[int] | None, _DIMS] = None,
    sizes: Annotated[list[Size] | None, _SIZES] = None,
    documents: Annotated[list[Size] | None, _DOCUMENTS] = None,
    precisions: Annotated[list[str] | None, _PRECISIONS] = None,
    metric: options.Metric = None,
    cache: Annotated[Path | None, _CACHE] = None,
    n_jobs: Annotated[int, _JOBS] = 1,
    batch_size: options.BatchSize = 32,
    out: Annotated[Path | None, _OUT] = None,
    plot: Annotated[Path | None, options.figure_option("Draw the grid as a heat map")] = None,
    source: Source,
) -> Answer:
    """Score a model at many sizes; each text runs through the model only once.

    For example:

        st-matryoshka2d grid all-MiniLM-L6-v2 --tasks STSBenchmark --out grid.parquet
    """
    if not tasks and not pairs and not labelled_pairs and not search:
        files = "--pairs, --labelled-pairs or --search with files of your own"
        raise typer.BadParameter(f"Say what to score on: --tasks STSBenchmark, or {files}.")
    if sizes and (num_layers or dims):
        raise typer.BadParameter("Give --sizes, or --num-layers and --dims (all their pairs are scored); both were given.")
    if columns and not pairs and not labelled_pairs:
        raise typer.BadParameter("--columns needs --pairs or --labelled-pairs.")
    options.check_outputs(out, plot)
    if cache is not None and not (cache.is_dir() and any(cache.iterdir())):  # finished results may be read-only
        check_writable_folder(cache)
    scored = read_pairs(pairs, columns or _SCORED)
    labelled = read_pairs(labelled_pairs, columns or _LABELLED)
    searched = read_search(search)
    _check_sizes(largest_size(source.require()), num_layers, dims, sizes, documents)

    from st_matryoshka2d import evaluate, pair_task, retrieval_task, sts_task
    from st_matryoshka2d.evaluation.tasks import chosen_tasks
    from st_matryoshka2d.grid import pivots

    own = [*tasks_of_pairs(sts_task, scored, "score"), *tasks_of_pairs(pair_task, labelled, "label")]
    own += [retrieval_task(**searched, name=search[0].stem)] if search else []
    chosen = chosen_tasks([*(tasks or []), *own])
    result = evaluate(
        source.open(),
        chosen,
        num_layers or None,
        dims or None,
        sizes or None,
        layers=layers,
        documents=documents or None,
        precisions=precisions or "float32",
        cache=cache,
        n_jobs=n_jobs,
        batch_size=batch_size,
    )
    if out is not None:
        _write(result, out)
    if plot is not None:
        result.plot(plot, metric=metric)
    scores = pivots.of_metric(result.to_frame(), metric).drop(columns="is_main")
    return Answer(_shown(result, metric), {"model": result.model, "scores": records(scores)}, [out, plot])


def _check_sizes(limit: Size, num_layers: list[int] | None, dims: list[int] | None, *sizes: list[Size] | None) -> None:
    """Refuse what exceeds the model before anything slow is imported."""
    for numbers, most, name, least in ((num_layers, limit.num_layers, "num_layers", 0), (dims, limit.dim, "dims", 1)):
        if numbers:
            all_within(numbers, most, name, least)
    for wanted in sizes:
        if wanted:
            validate_sizes(wanted, limit, least=0)


def _sections(result: GridResult, metric: str | None) -> Iterator[tuple[str, GridResult]]:
    """Yield a title and a grid for each size of documents, precision and task, and for the mean of several tasks."""
    from st_matryoshka2d.grid import pivots

    for side, precision in product(result.document_sizes, result.precisions):
        stored = f"{precision}, " if result.precisions != ["float32"] else ""
        stored += f"documents at {side}, " if result.document_sizes != ["same size"] else ""
        for tasks in [*([task] for task in result.tasks), *([result.tasks] if len(result.tasks) > 1 else [])]:
            grid = result.at(documents=side, precision=precision, tasks=tasks)
            yield f"{stored}{pivots.subject(tasks)}: {pivots.metric_name(grid.frame, None, metric)}, percent", grid


def _shown(result: GridResult, metric: str | None) -> list[RenderableType]:
    from st_matryoshka2d.grid import pivots

    parts: list[RenderableType] = []
    for title, grid in _sections(result, metric):
        body = pivots.percent(grid.frame, None, metric)
        parts += [f"\n{title}" if parts else title, table_of_cells(body)]
        parts += [f"\n{note}" for note in (*pivots.examples_note(grid.items), *pivots.notes(grid.frame, None, metric))]
    return parts


def _write(result: GridResult, path: Path) -> None:
    from st_matryoshka2d.files.atomic import replace_file

    if path.suffix.lower() == ".csv":
        replace_file(path, lambda part: result.to_frame().to_csv(part, index=False))
    else:
        result.save(path)
