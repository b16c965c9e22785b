"""One evaluation: load stored scores, embed each text once for the rest, and let mteb compute them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import joblib
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.types import EncodeKwargs
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from st_matryoshka2d._hosts.mteb import quiet_mteb, random_states_kept
from st_matryoshka2d.encoding.existing_embeddings import Existing
from st_matryoshka2d.evaluation.embeddings import Embeddings, TextEncoder
from st_matryoshka2d.evaluation.mteb_adapter import VariantModel, as_grid, items_of, result_of
from st_matryoshka2d.evaluation.processes import MODEL, Encode, in_all_processes
from st_matryoshka2d.evaluation.search import TaskSearch
from st_matryoshka2d.evaluation.store import Cache, Scored, Store
from st_matryoshka2d.evaluation.tasks import data_of, fresh, parts_of
from st_matryoshka2d.evaluation.variants import Variant
from st_matryoshka2d.grid.grid_result import GridResult
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.sizes import full_size, positive_int
from st_matryoshka2d.texts import naming_a_broken_text


def score_variants(
    model: SentenceTransformer | Pipeline,
    tasks: Sequence[AbsTask],
    variants: Sequence[Variant],
    *,
    cache: Cache = None,
    n_jobs: int = 1,
    batch_size: int = 32,
    corpus_chunk_size: int = 4096,
    show_progress_bar: bool = True,
    existing: Existing | None = None,
) -> GridResult:
    """Score every variant on every task, in all processes of the launch together."""
    encode_kwargs: EncodeKwargs = {"batch_size": positive_int(batch_size, "batch_size"), "show_progress_bar": False}
    corpus_chunk_size = positive_int(corpus_chunk_size, "corpus_chunk_size")
    positive_int(1 if n_jobs == -1 else n_jobs, "n_jobs")  # -1: all processors, as in joblib
    of_documents = {variant.document_layers for variant in variants}
    depths = {variant.size.num_layers for variant in variants}
    encoder = TextEncoder(model, depths, of_documents)
    parts = [part for task in tasks for part in parts_of(task)]
    arguments = {
        MODEL: encoder.meta.revision,
        "tasks": [task.metadata.name for task in tasks],
        "data of the tasks": [part.metadata.revision for part in parts],
        "sizes, precisions or truncations": list(map(str, variants)),
    }

    def lead(encode: Encode, processes: int) -> GridResult:
        store = Store(cache, encoder.meta, corpus_chunk_size) if cache is not None else None
        with tqdm(total=len(parts) * len(variants), desc="Scores", disable=not show_progress_bar) as bar:
            run = _Run(encoder, encode, processes, variants, corpus_chunk_size, encode_kwargs, n_jobs, store, bar, existing)
            return GridResult.merge([grid for task in tasks for grid in run.grids(task)])

    with random_states_kept():
        grid = in_all_processes(encoder.model, encoder, lead, arguments)
    return replace(grid, revision=str(encoder.meta.revision), full_size=str(full_size(encoder.model)))


@dataclass(frozen=True)
class _Run:
    """One evaluation in progress."""

    encoder: TextEncoder
    encode: Encode
    processes: int
    variants: Sequence[Variant]
    corpus_chunk_size: int
    encode_kwargs: EncodeKwargs
    n_jobs: int
    store: Store | None
    bar: tqdm[Any]
    existing: Existing | None

    def grids(self, task: AbsTask) -> list[GridResult]:
        """Return the grid of each variant, in the order of the variants."""
        of_parts = [self._scores(part) for part in parts_of(task)]
        if not isinstance(task, AbsTaskAggregate):
            return [scored.grid for scored in of_parts[0]]
        grids = []
        for variant, *scores in zip(self.variants, *of_parts, strict=True):
            result = task.combine_task_results([scored.of_mteb for scored in scores])
            grids.append(as_grid(task, variant, result, {}, str(self.encoder.meta.name)))
            if self.store is not None:
                self.store.keep(task, variant, Scored(grids[-1], result))
                self.store.clear(task)
        return grids

    def _scores(self, task: AbsTask) -> list[Scored]:
        """Return the scores of each variant on a task that is not an aggregate: stored ones, or new ones."""
        self.bar.set_description(task.metadata.name)
        store, scores = self.store, dict[Variant, Scored]()
        for variant in self.variants:
            if store is not None and (stored := store.load(task, variant)):
                scores[variant] = stored
        self.bar.update(len(scores))
        if pending := [variant for variant in self.variants if variant not in scores]:
            if store is not None:
                store.check_writable()  # before the work
            with naming_a_broken_text(task.metadata.name), data_of(task):
                for variant, scored in zip(pending, self._new_scores(task, pending), strict=True):
                    scores[variant] = scored if store is None else store.keep(task, variant, scored)
                    self.bar.update()
        if store is not None:
            # even if nothing was pending: the previous run may have been killed just before this
            # line
            store.clear(task)
        return [scores[variant] for variant in self.variants]

    def _new_scores(self, task: AbsTask, variants: Sequence[Variant]) -> Iterator[Scored]:
        """Score variants with mteb; the first one embeds every text, and the others reuse the embeddings."""
        embeddings = Embeddings(
            self.encoder,
            self.encode,
            processes=self.processes,
            folder=self.store.folder(task) if self.store is not None else None,
            show_progress_bar=not self.bar.disable,
            existing=self.existing,
        )
        search = TaskSearch(embeddings, self.variants, corpus_chunk_size=self.corpus_chunk_size)
        first, *others = variants
        scored = _score(first, task, search, self.encode_kwargs)
        self.bar.unpause()  # embedding has its own bar, and would distort the estimate for the scores
        yield scored
        # Scoring retrieval takes less time than sending the search results to another process.
        n_jobs = 1 if isinstance(task, AbsTaskRetrieval) else self.n_jobs
        calls = (joblib.delayed(_score)(variant, task, search, self.encode_kwargs, quiet=True) for variant in others)
        yield from joblib.Parallel(n_jobs, return_as="generator")(calls)


def _score(
    variant: Variant, task: AbsTask, search: TaskSearch, encode_kwargs: EncodeKwargs, *, quiet: bool = False
) -> Scored:
    """Score one variant with mteb."""
    model, again = VariantModel(search, variant), fresh(task)
    if quiet:  # it has warned already
        again.metadata = again.metadata.model_copy(update={"superseded_by": None})
    with quiet_mteb() if quiet else nullcontext():
        result = result_of(model, again, encode_kwargs)
    items = items_of(again, result, model)
    return Scored(as_grid(again, variant, result, items, str(search.embeddings.meta.name)), result)
