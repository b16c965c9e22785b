"""Score every size of a model on mteb tasks."""

from __future__ import annotations

import difflib
import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import mteb
import pandas as pd
from datasets import Dataset, DatasetDict
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.sts import AbsTaskSTS
from mteb.benchmarks.benchmark import Benchmark
from mteb.results import TaskResult
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from st_matryoshka2d.evaluation.columns import COLUMNS
from st_matryoshka2d.evaluation.encoder import EncodeOnce
from st_matryoshka2d.evaluation.result import GridResult
from st_matryoshka2d.layers import transformer_of
from st_matryoshka2d.sizes import Size, all_within, full_size, mrl_dims, positive_int, sizes_product, validate_sizes

__all__ = ["evaluate"]

# What mteb keeps beside the metrics; `main_score` is one of the metrics a second time.
_NOT_METRICS = {"main_score", "hf_subset", "languages", "mteb_version"}


def evaluate(
    model: SentenceTransformer,
    tasks: AbsTask | str | Benchmark | Iterable[AbsTask | str | Benchmark],
    num_layers: int | Iterable[int] | None = None,
    dims: int | Iterable[int] | None = None,
    sizes: Iterable[Size | str] | None = None,
    *,
    batch_size: int = 32,
    show_progress_bar: bool = True,
) -> GridResult:
    """Score a model cut to many sizes, each text through the model once.

    Each score is that of `mteb.evaluate(truncate(model, num_layers, dim), task)`, to rounding, without a model loaded or a
    text encoded again for each size. Nothing is read from or written to mteb's cache of results.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`; it is left as it is.
        tasks: One or several mteb tasks, task names or benchmarks. Tasks of type STS (texts) are scored. Pairs of your own
            are a subclass of mteb's `AbsTaskSTS`; `examples/demo_data.py` has one.
        num_layers: Depths, each 1..N; None for all.
        dims: Widths, each 1..D; None for 8, 16, 32, ... below D, and D.
        sizes: Sizes, instead of all pairs of `num_layers` and `dims`.
        batch_size: Texts in a batch of the model.
        show_progress_bar: Show one step for each task and size.

    Returns:
        The scores. All metrics that mteb gives are in `to_frame()`.

    Raises:
        TypeError: The model is not a `SentenceTransformer`, or a task is not a task.
        ValueError: A size is not within the model; `sizes` is given as well as `num_layers` or `dims`; there is no task,
            one is unknown, not of type STS, or given twice.

    Example:
        >>> grid = evaluate(model, task, num_layers=[3, 6], dims=[64, 384], show_progress_bar=False)
        >>> print(*grid.sizes)
        3L-64d 3L-384d 6L-64d 6L-384d
        >>> grid.score("6L-384d") > grid.score("3L-64d")
        True
    """
    transformer_of(model)
    positive_int(batch_size, "batch_size")
    wanted = _wanted_sizes(full_size(model), num_layers, dims, sizes)
    chosen = _chosen_tasks(tasks)
    encoder = EncodeOnce(model, wanted)
    rows: list[dict[str, Any]] = []
    with tqdm(total=len(chosen) * len(wanted), disable=not show_progress_bar) as bar:
        for task in chosen:
            with _data_of(task):
                for size in wanted:
                    bar.set_description(f"{task.metadata.name} {size}")
                    with _quiet_mteb() if size != wanted[0] else nullcontext():
                        rows += _rows(task, size, _score(encoder, task, size, batch_size))
                    bar.update()
            encoder.forget()
    return GridResult(pd.DataFrame(rows, columns=COLUMNS))


def _wanted_sizes(
    full: Size, num_layers: int | Iterable[int] | None, dims: int | Iterable[int] | None, sizes: Iterable[Size | str] | None
) -> list[Size]:
    if sizes is not None:
        if num_layers is not None or dims is not None:
            raise ValueError("Give sizes, or num_layers and dims (all their pairs are scored); both were given.")
        return validate_sizes(sizes, full)

    layers = range(1, full.num_layers + 1) if num_layers is None else all_within(num_layers, full.num_layers, "num_layers")
    widths = [*mrl_dims(full.dim), full.dim] if dims is None else all_within(dims, full.dim, "dim")
    return sizes_product(layers, widths)


def _chosen_tasks(tasks: AbsTask | str | Benchmark | Iterable[AbsTask | str | Benchmark]) -> list[AbsTaskSTS]:
    if isinstance(tasks, (pd.DataFrame, Dataset, DatasetDict)):
        raise TypeError(
            f"A {type(tasks).__name__} is not a task. To score pairs of your own, subclass mteb's AbsTaskSTS with a "
            "`load_data` that sets `self.dataset`, as examples/demo_data.py does, and pass an instance."
        )
    given = list(tasks) if isinstance(tasks, Iterable) and not isinstance(tasks, str) else [tasks]
    flat = [task for entry in given for task in (entry if isinstance(entry, Benchmark) else [entry])]
    chosen: list[AbsTaskSTS] = []
    for entry in flat:
        task = _task_named(entry) if isinstance(entry, str) else entry
        if not isinstance(task, AbsTask):
            raise TypeError(f"A task is an mteb task object, its name or a benchmark, got {task!r} ({type(task).__name__}).")
        name, modalities = task.metadata.name, task.metadata.modalities
        if not isinstance(task, AbsTaskSTS) or modalities != ["text"]:
            raise ValueError(
                f"{name} is of type {task.metadata.type} ({', '.join(modalities)}); only STS of text is scored."
            )
        if name in [other.metadata.name for other in chosen]:
            raise ValueError(f"{name} is given more than once; give each task once.")
        chosen.append(task)
    if not chosen:
        raise ValueError("tasks is empty; give at least one STS task, for example 'STSBenchmark'.")
    return chosen


def _task_named(name: str) -> AbsTask:
    try:
        return mteb.get_task(name)
    except KeyError as error:
        known = [task.metadata.name for task in mteb.get_tasks(task_types=["STS"], exclude_superseded=False)]
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"Near names: {', '.join(near)}." if near else "`mteb.get_tasks(task_types=['STS'])` lists what there is."
        raise ValueError(f"mteb has no task named {name!r}. {hint}") from error


@contextmanager
def _data_of(task: AbsTask) -> Iterator[None]:
    """Load a task's data once for all sizes; data that was there before stays there."""
    if task.data_loaded:
        yield
        return
    task.load_data()
    try:
        yield
    finally:
        task.unload_data()


@contextmanager
def _quiet_mteb() -> Iterator[None]:
    """Hide mteb's remarks on a task (superseded by another, ...), which it makes again for every size."""
    logger = logging.getLogger("mteb")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="mteb")
            yield
    finally:
        logger.setLevel(before)


def _score(encoder: EncodeOnce, task: AbsTask, size: Size, batch_size: int) -> TaskResult:
    results = mteb.evaluate(
        encoder.at(size),
        task,
        cache=None,
        co2_tracker=False,
        show_progress_bar=False,
        encode_kwargs={"batch_size": batch_size, "show_progress_bar": False},
    )
    return results.task_results[0]


def _rows(task: AbsTask, size: Size, result: TaskResult) -> Iterator[dict[str, Any]]:
    for split, subsets in result.scores.items():
        for scores in subsets:
            for metric, score in scores.items():
                if metric in _NOT_METRICS or isinstance(score, bool) or not isinstance(score, (int, float)):
                    continue
                yield {
                    "task": task.metadata.name,
                    "split": split,
                    "subset": scores["hf_subset"],
                    "num_layers": size.num_layers,
                    "dim": size.dim,
                    "metric": metric,
                    "score": float(score),
                    "is_main": metric == task.metadata.main_score,
                }
