"""One evaluation: load stored results, embed each text once for the rest, and let mteb compute the scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import joblib
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.types import EncodeKwargs
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from st_matryoshka2d._hosts.mteb import quiet_mteb
from st_matryoshka2d.encoding.texts import naming_a_broken_text
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.embeddings import Embeddings
from st_matryoshka2d.evaluation.launch import Processes
from st_matryoshka2d.evaluation.mteb_adapter import VariantModel, as_grid, items_of, meta_of, result_of
from st_matryoshka2d.evaluation.search import CorpusSearch
from st_matryoshka2d.evaluation.store import Cache, Job, Scored, Store, T
from st_matryoshka2d.evaluation.tasks import data_of, fresh, parts_of, random_states_kept
from st_matryoshka2d.evaluation.variants import RANGED, Variant
from st_matryoshka2d.grid.grid_result import GridResult
from st_matryoshka2d.model.sides import sides_of
from st_matryoshka2d.sizes import full_size, positive_int


def score_variants(
    model: SentenceTransformer, tasks: Sequence[AbsTask], variants: Sequence[Variant], **settings: Any
) -> GridResult:
    """Score every variant on every task; takes the settings of `running`."""
    with running(model, tasks, variants, what="Scores", steps=len(variants), **settings) as run:
        grid = GridResult.merge([grid for task in tasks for grid in _grids(run, task)])
        return replace(grid, revision=str(run.embeddings.meta.revision), full_size=str(full_size(model)))


@contextmanager
def running(
    model: SentenceTransformer,
    tasks: Sequence[AbsTask],
    variants: Sequence[Variant],
    *,
    what: str,
    steps: int = 1,
    cache: Cache = None,
    n_jobs: int = 1,
    batch_size: int = 32,
    corpus_chunk_size: int = 4096,
    show_progress_bar: bool = True,
) -> Iterator[Run]:
    """Set up an evaluation that all processes of the launch share, with a progress bar of `steps` steps per task."""
    batch_size = positive_int(batch_size, "batch_size")
    corpus_chunk_size = positive_int(corpus_chunk_size, "corpus_chunk_size")
    positive_int(1 if n_jobs == -1 else n_jobs, "n_jobs")  # -1: all processors, as in joblib
    processes = Processes.of_launch(model)
    show_progress_bar = show_progress_bar and processes.rank == 0
    total = sum(len(parts_of(task)) for task in tasks) * steps
    bar = tqdm(total=total, desc=what, disable=not show_progress_bar)
    with processes.failing_together(), random_states_kept(), bar:
        of_documents = {variant.document_layers for variant in variants}
        depths = {variant.size.num_layers for variant in variants}
        if not sides_of(model):  # of which each has one depth
            depths |= of_documents
        # Encoding has its own bar; without `unpause`, its time would distort the estimate for the
        # scores.
        alike: dict[str, Any] = {"processes": processes, "show_progress_bar": show_progress_bar}
        embeddings = Embeddings(model, depths, document_depths=of_documents, after_encoding=bar.unpause, **alike)
        search = CorpusSearch(embeddings, variants, corpus_chunk_size=corpus_chunk_size)
        _check_alike(search, tasks)
        store = Store(cache, embeddings.meta) if cache is not None else None
        yield Run(search, store, n_jobs, {"batch_size": batch_size, "show_progress_bar": False}, bar)


def _check_alike(search: CorpusSearch, tasks: Sequence[AbsTask]) -> None:
    """Refuse different arguments in different processes: one would wait forever for a step that another never takes."""
    model = "weights or settings of the model"
    arguments = {
        model: search.embeddings.meta.revision,
        "tasks": [task.metadata.name for task in tasks],
        "data of the tasks": [part.metadata.revision for task in tasks for part in parts_of(task)],
        "sizes, precisions or truncations": [str(variant) for variant in search.variants],
        "corpus_chunk_size": search.corpus_chunk_size,
    }
    of_all = search.embeddings.processes.everyones(arguments)
    if differing := [name for name in arguments if any(other[name] != arguments[name] for other in of_all)]:
        hint = " On CPUs, a Trainer only distributes its training with `use_cpu=True`." if model in differing else ""
        raise UsageError(f"The processes share one evaluation, but differ in: {', '.join(differing)}.{hint}")


@dataclass(frozen=True)
class Run:
    """One evaluation in progress."""

    search: CorpusSearch
    store: Store | None
    n_jobs: int
    encode_kwargs: EncodeKwargs
    bar: tqdm[Any]

    @property
    def embeddings(self) -> Embeddings:
        """The embeddings of all texts."""
        return self.search.embeddings

    def results(self, task: AbsTask, jobs: Sequence[Job[T]]) -> list[Scored[T]]:
        """Return the result of each job on a task that is not an aggregate, in the order of the jobs."""
        processes = self.embeddings.processes
        self.bar.set_description(task.metadata.name)
        # The first process decides which jobs are pending, so that all processes run the same
        # collective calls.
        store = None if processes.rank else self.store
        loaded = [store.load(task, job) for job in jobs] if store is not None else []
        found = processes.everyones({number: kept for number, kept in enumerate(loaded) if kept})[0]
        self.bar.update(len(found))
        if pending := [number for number in range(len(jobs)) if number not in found]:
            if self.store is not None:
                self.store.check_writable()  # before the work
            with naming_a_broken_text(task.metadata.name), data_of(task):
                self.search.begin(self.store.folder(task) if self.store is not None else None)
                # The first job encodes every text, on all processes together; the other jobs reuse
                # the embeddings.
                first, *rest = pending
                scored = jobs[first].score(self.search, task, self.encode_kwargs)
                found[first] = processes.everyones(self._kept(task, jobs[first], scored) if processes.rank == 0 else None)[0]
                self.bar.update()
                found |= self._rest(task, jobs, rest)
                self.search.begin(None)
        if store is not None:
            # even if nothing was pending: the previous run may have been killed just before this
            # line
            store.clear(task)
        return [found[number] for number in range(len(jobs))]

    def _kept(self, task: AbsTask, job: Job[T], found: Scored[T]) -> Scored[T]:
        """Save a result and read it back, so that fresh and resumed runs return identical values."""
        if self.store is None:
            return found
        self.store.save(task, job, found)
        return self.store.load(task, job) or found

    def _rest(self, task: AbsTask, jobs: Sequence[Job[T]], pending: Sequence[int]) -> dict[int, Scored[T]]:
        """Run the share of this process, `n_jobs` jobs at a time, and collect the results of all processes."""
        processes, search = self.embeddings.processes, self.search.alone()
        own = pending[processes.rank :: processes.count]
        # Scoring retrieval takes less time than sending the search results to another process.
        n_jobs = 1 if isinstance(task, AbsTaskRetrieval) else self.n_jobs
        calls = (joblib.delayed(jobs[number].score)(search, task, self.encode_kwargs, quiet=True) for number in own)
        found: dict[int, Scored[T]] = {}
        for number, one in zip(own, joblib.Parallel(n_jobs, return_as="generator")(calls), strict=True):
            found[number] = self._kept(task, jobs[number], one)
            self.bar.update()
        self.bar.update(len(pending) - len(own))
        return {number: one for of_process in processes.everyones(found) for number, one in of_process.items()}


def _grids(run: Run, task: AbsTask) -> list[GridResult]:
    """Return the grid of each variant, in the order of the variants."""
    parts = [run.results(part, [_job(run, part, variant) for variant in run.search.variants]) for part in parts_of(task)]
    if not isinstance(task, AbsTaskAggregate):
        return [kept.result for kept in parts[0]]
    grids = []
    for variant, *of_parts in zip(run.search.variants, *parts, strict=True):
        result = task.combine_task_results([part.mteb_result for part in of_parts if part.mteb_result is not None])
        grids.append(as_grid(task, variant, result, {}, str(run.embeddings.meta.name)))
        if run.store is not None and run.embeddings.processes.rank == 0:
            run.store.save(task, _job(run, task, variant), Scored(grids[-1], result))
            run.store.clear(task)
    return grids


def _job(run: Run, task: AbsTask, variant: Variant) -> Job[GridResult]:
    name = str(variant).replace(" ", "-")
    if variant.precision in RANGED and isinstance(task, AbsTaskRetrieval):
        # integers are scaled to the range of the first chunk
        name += f"-of-{run.search.corpus_chunk_size}"
    return Job(name, GridResult, partial(_score, variant), meta_of(run.embeddings.meta, variant))


def _score(
    variant: Variant, search: CorpusSearch, task: AbsTask, encode_kwargs: EncodeKwargs, *, quiet: bool = False
) -> Scored[GridResult]:
    """Score one variant with mteb."""
    model, again = VariantModel(search, variant), fresh(task)
    if quiet:  # it has warned already
        again.metadata = again.metadata.model_copy(update={"superseded_by": None})
    with quiet_mteb() if quiet else nullcontext():
        result = result_of(model, again, encode_kwargs)
    items = items_of(again, result, model)
    return Scored(as_grid(again, variant, result, items, str(search.embeddings.meta.name)), result)
