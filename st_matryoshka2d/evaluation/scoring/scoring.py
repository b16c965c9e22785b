"""Score views of a model on tasks: one forward pass, then mteb's own evaluation of each view."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import joblib
import mteb
from mteb import ResultCache
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.sts import AbsTaskSTS
from mteb.results import TaskResult
from mteb.types import EncodeKwargs
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from st_matryoshka2d.evaluation.encoding.encoder import EncodeOnce
from st_matryoshka2d.evaluation.encoding.view_encoder import ViewEncoder
from st_matryoshka2d.evaluation.grid.result import GridResult
from st_matryoshka2d.evaluation.processes import Processes
from st_matryoshka2d.evaluation.random_states import random_states_kept
from st_matryoshka2d.evaluation.scoring.archive import Archive, cache_in
from st_matryoshka2d.evaluation.scoring.cells import Items, cell, query_items, sts_items
from st_matryoshka2d.evaluation.scoring.tasks import data_of, fresh, parts_of
from st_matryoshka2d.evaluation.views.views import View
from st_matryoshka2d.sizes import full_size
from st_matryoshka2d.texts import naming_a_broken_text

__all__ = ["check_alike", "score_views"]

Cell = tuple[TaskResult, GridResult]


def score_views(
    model: SentenceTransformer,
    tasks: Sequence[AbsTask],
    views: Sequence[View],
    *,
    cache: ResultCache | str | os.PathLike[str] | None = None,
    n_jobs: int = 1,
    batch_size: int = 32,
    corpus_chunk_size: int = 4096,
    show_progress_bar: bool = True,
) -> GridResult:
    """Score every view on every task, each text through the model once per task and prompt.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`; it is left as it is.
        tasks: Task objects, each once.
        views: Views, each once.
        cache: Where results are kept, and taken from; None keeps nothing.
        n_jobs: Processes that score views at a time, of tasks that are no retrieval.
        batch_size: Texts in a batch of the model.
        corpus_chunk_size: Documents of a retrieval task that are in memory at a time.
        show_progress_bar: Show what is done.
    """
    processes = Processes.that_share(model)
    show_progress_bar = show_progress_bar and processes.rank == 0
    total = sum(len(parts_of(task)) for task in tasks) * len(views)
    with (
        processes.failing_together(),
        random_states_kept(),
        tqdm(total=total, desc="Scores", disable=not show_progress_bar) as bar,
    ):
        shared = EncodeOnce(
            model,
            views,
            corpus_chunk_size=corpus_chunk_size,
            processes=processes,
            show_progress_bar=show_progress_bar,
        )
        # Texts have a bar of their own; how long the cells will take is told from the cells alone.
        shared.after_encoding = bar.unpause
        check_alike(shared, tasks)
        archive = Archive(cache_in(cache), shared.meta, corpus_chunk_size) if cache is not None else None
        run = Run(shared, archive, n_jobs, {"batch_size": batch_size, "show_progress_bar": False})
        grid = GridResult.merge([grid for task in tasks for grid in run.grids(task, bar)])
        return replace(grid, revision=str(shared.meta.revision), full_size=str(full_size(model)))


_MODEL = "weights or settings of the model"


def check_alike(shared: EncodeOnce, tasks: Sequence[AbsTask]) -> None:
    """Processes that share an evaluation have to be asked for the same, or one would wait for what another never does.

    Args:
        shared: Encodes, and knows the views.
        tasks: What is asked for. The revision of data of the user's own is a digest of it.

    Raises:
        ValueError: They are asked for different things.
    """
    parts = [part.metadata for task in tasks for part in parts_of(task)]
    asked = {
        _MODEL: shared.meta.revision,
        "tasks": [task.metadata.name for task in tasks],
        "data of the tasks": [part.revision for part in parts],
        "sizes, precisions or truncations": [str(view) for view in shared.views],
        "corpus_chunk_size": shared.corpus_chunk_size,
    }
    everyones = shared.processes.everyones(asked)
    if differing := [what for what in asked if any(one[what] != asked[what] for one in everyones)]:
        hint = (
            " If they have trained it, each did so by itself: on CPUs the Trainer shares the work with `use_cpu=True` alone."
            if _MODEL in differing
            else ""
        )
        raise ValueError(f"The processes share one evaluation, and differ in: {', '.join(differing)}.{hint}")


@dataclass(frozen=True)
class Run:
    """One evaluation.

    Args:
        shared: Encodes, and knows the views.
        archive: Keeps finished cells; None keeps nothing.
        n_jobs: Processes that score views at a time.
        encode_kwargs: What mteb passes on to `encode`.
    """

    shared: EncodeOnce
    archive: Archive | None
    n_jobs: int
    encode_kwargs: EncodeKwargs

    def grids(self, task: AbsTask, bar: tqdm[Any]) -> list[GridResult]:
        """What was found under each view, in their order.

        Args:
            task: Any task.
            bar: Shows what is done.
        """
        parts = [self.cells(part, bar) for part in parts_of(task)]
        if isinstance(task, AbsTaskAggregate):
            return [self.aggregate(task, view, results) for view, *results in zip(self.shared.views, *parts, strict=True)]
        return [grid for _, grid in parts[0]]

    def cells(self, task: AbsTask, bar: tqdm[Any]) -> list[Cell]:
        """The cell of each view, in their order.

        Args:
            task: A task that is no aggregate.
            bar: Shows what is done.
        """
        views, processes = self.shared.views, self.shared.processes
        bar.set_description(task.metadata.name)
        # The first process decides for all, so that they meet wherever they wait for each other.
        loaded = {} if processes.rank else {number: self._load(task, number) for number in range(len(views))}
        cells = processes.everyones({number: found for number, found in loaded.items() if found})[0]
        bar.update(len(cells))
        if pending := [number for number in range(len(views)) if number not in cells]:
            with naming_a_broken_text(task.metadata.name), data_of(task):
                self.shared.begin(self.archive.folder(task) if self.archive is not None else None)
                # The first view has every text encoded, by all processes together; the others only look up.
                first = _score(self.shared, task, views[pending[0]], self.encode_kwargs)
                kept = self._kept(task, pending[0], first) if processes.rank == 0 else None
                cells[pending[0]] = processes.everyones(kept)[0]
                bar.update()
                cells |= self._rest(task, pending[1:], bar)
                self.shared.begin(None)
        # Also where the run before was killed when it had just finished.
        if self.archive is not None and processes.rank == 0:
            self.archive.clear(task)
        return [cells[number] for number in range(len(views))]

    def aggregate(self, task: AbsTaskAggregate, view: View, parts: Sequence[Cell]) -> GridResult:
        """The cell of a task that is made of others.

        Args:
            task: The task.
            view: The view.
            parts: The cells of the others under this view.
        """
        result = task.combine_task_results([result for result, _ in parts])
        grid = cell(task, view, result, {}, str(self.shared.meta.name))
        if self.archive is not None and self.shared.processes.rank == 0:
            self.archive.save(task, view, ViewEncoder(self.shared, view).mteb_model_meta, result, grid)
            self.archive.clear(task)
        return grid

    def _rest(self, task: AbsTask, pending: Sequence[int], bar: tqdm[Any]) -> dict[int, Cell]:
        """Each process scores its share, several views at a time where that is asked for."""
        processes, shared = self.shared.processes, self.shared.alone()
        own = pending[processes.rank :: processes.count]
        # The scores of retrieval take less time than sending what was found to another process.
        n_jobs = 1 if isinstance(task, AbsTaskRetrieval) else self.n_jobs
        calls = (
            joblib.delayed(_score)(shared, task, shared.views[number], self.encode_kwargs, quiet=True) for number in own
        )
        cells: dict[int, Cell] = {}
        for number, found in zip(own, joblib.Parallel(n_jobs, return_as="generator")(calls), strict=True):
            cells[number] = self._kept(task, number, found)
            bar.update()
        bar.update(len(pending) - len(own))
        return {number: found for of_process in processes.everyones(cells) for number, found in of_process.items()}

    def _load(self, task: AbsTask, number: int) -> Cell | None:
        if self.archive is None:
            return None
        view = self.shared.views[number]
        return self.archive.load(task, view, ViewEncoder(self.shared, view).mteb_model_meta)

    def _kept(self, task: AbsTask, number: int, found: Cell) -> Cell:
        """The cell as it is read back, so that it is the same whether this run wrote it or the one before."""
        if self.archive is None:
            return found
        view = self.shared.views[number]
        self.archive.save(task, view, ViewEncoder(self.shared, view).mteb_model_meta, *found)
        return self._load(task, number) or found


def _score(shared: EncodeOnce, task: AbsTask, view: View, encode_kwargs: EncodeKwargs, *, quiet: bool = False) -> Cell:
    """What mteb says of one view."""
    encoder = ViewEncoder(shared, view)
    again = fresh(task)
    with _quiet_mteb() if quiet else nullcontext():
        results = mteb.evaluate(
            encoder, again, cache=None, co2_tracker=False, show_progress_bar=False, encode_kwargs=encode_kwargs.copy()
        )
    result = results.task_results[0]
    items: Items = {}
    if isinstance(again, AbsTaskSTS):
        items = sts_items(again, encoder.pairs, shared.similarity)
    elif isinstance(again, AbsTaskRetrieval):
        items = query_items(again, result, encoder.rankings)
    return result, cell(again, view, result, items, str(shared.meta.name))


@contextmanager
def _quiet_mteb() -> Iterator[None]:
    """Hide mteb's remarks on a task (superseded by another, ...), which it makes again for every view."""
    logger = logging.getLogger("mteb")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="mteb")
            yield
    finally:
        logger.setLevel(before)
