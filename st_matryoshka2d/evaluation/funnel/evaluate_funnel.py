"""Score all funnels of two sizes of a model: the first makes a shortlist, the second puts it in order."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable

import pandas as pd
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from st_matryoshka2d.evaluation.encoding.encoder import EncodeOnce
from st_matryoshka2d.evaluation.funnel.result import FunnelResult
from st_matryoshka2d.evaluation.funnel.run import Run
from st_matryoshka2d.evaluation.funnel.stages import ascending, pairs_of
from st_matryoshka2d.evaluation.grid.columns import AXES
from st_matryoshka2d.evaluation.processes import Processes
from st_matryoshka2d.evaluation.random_states import random_states_kept
from st_matryoshka2d.evaluation.scoring.archive import Archive, cache_in
from st_matryoshka2d.evaluation.scoring.scoring import check_alike
from st_matryoshka2d.evaluation.scoring.tasks import Tasks, chosen_tasks, parts_of
from st_matryoshka2d.evaluation.views.precision import check_precision
from st_matryoshka2d.evaluation.views.views import View
from st_matryoshka2d.layers import transformer_of
from st_matryoshka2d.sizes import Size, full_size, mrl_dims, positive_int, sizes_product, validate_sizes

__all__ = ["evaluate_funnel"]


def evaluate_funnel(
    model: SentenceTransformer,
    tasks: Tasks,
    sizes: Iterable[Size | str] | None = None,
    *,
    shortlists: int | Iterable[int] = (20, 50, 100),
    k: int = 10,
    precisions: str | Iterable[str] = AXES["precision"],
    cache: str | os.PathLike[str] | None = None,
    batch_size: int = 32,
    corpus_chunk_size: int = 4096,
    show_progress_bar: bool = True,
) -> FunnelResult:
    """What is left of a search when a small size makes a shortlist of k1 documents and a larger one puts it in order.

    All pairs of sizes are scored in one go whose first is the cheaper: it has no more layers, dims and bits than the second,
    and less of one of them. In each stage queries and documents are compared at the size of that stage. Both stages are
    exact; what an approximate index loses comes on top. The corpus is read once, each text goes through the model once, and
    no embedding of a document is kept. Under `torchrun` or `accelerate launch` the processes share the texts.

    Fewer layers in the first stage save nothing as long as the second needs more: the model is run up to the second's layer
    for every document and every query, and makes the first vectors on the way. Dims and bits make the index small.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`; it is left as it is.
        tasks: One or several mteb tasks of retrieval, task names or benchmarks, or tasks that `retrieval_task` makes.
        sizes: Sizes that either stage may have; None for all layers, with 8, 16, 32, ... and all dims.
        shortlists: How many documents the first stage hands on, k1; none below k. What is kept in memory grows with the
            longest, the number of queries, and up to the square of the number of sizes.
        k: How many documents come out.
        precisions: As for `evaluate`; every size is taken in each, so `["binary", "float32"]` has binary shortlists that
            float32 vectors put in order, and all others too.
        cache: A folder: what was found for a task is written there, a run that was killed goes on where it stopped, and one
            that is repeated reads it. None reads and writes nothing.
        batch_size: Texts in a batch of the model.
        corpus_chunk_size: Documents that are in memory at a time.
        show_progress_bar: Show what is done.

    Returns:
        nDCG@k and recall@k of every funnel and of the second size alone, and what they cost.

    Raises:
        TypeError: The model is not a `SentenceTransformer`, or a task is not a task.
        ValueError: A size is not within the model, no size is cheaper than another, a shortlist is shorter than k, a task
            does not search a corpus (STS, reranking, ...), or `cache` is a file.

    Warns:
        UserWarning: A shortlist is longer than a corpus, so that nothing is left out.

    Example:
        >>> from st_matryoshka2d import retrieval_task
        >>> corpus = {"d1": "a kitten sleeps", "d2": "rain is falling", "d3": "he plays chess", "d4": "a cat and a dog"}
        >>> corpus["d5"] = "the sun shines"
        >>> task = retrieval_task(corpus, {"q1": "tired kitten", "q2": "wet weather"}, {"q1": ["d1"], "q2": ["d2"]})
        >>> result = evaluate_funnel(model, task, ["6L-4d", "6L-384d"], shortlists=[1, 4], k=1, show_progress_bar=False)
        >>> result.to_frame()[["first", "second", "k1", "recall_at_k1", "ndcg", "ndcg_alone"]]
           first   second  k1  recall_at_k1  ndcg  ndcg_alone
        0  6L-4d  6L-384d   1           0.5   0.5         1.0
        1  6L-4d  6L-384d   4           1.0   1.0         1.0
    """
    transformer_of(model)
    positive_int(batch_size, "batch_size")
    positive_int(corpus_chunk_size, "corpus_chunk_size")
    chosen = chosen_tasks(tasks)
    for task in chosen:
        for part in parts_of(task):
            _check_search(part)
    lengths = _lengths(shortlists, positive_int(k, "k"))
    views = _views(full_size(model), sizes, precisions)
    processes = Processes.that_share(model)
    show_progress_bar = show_progress_bar and processes.rank == 0
    with processes.failing_together(), random_states_kept():
        shared = EncodeOnce(
            model,
            views,
            corpus_chunk_size=corpus_chunk_size,
            shortlist=lengths[-1] + 1,  # one of them may have the query's own id, and be left out
            processes=processes,
            show_progress_bar=show_progress_bar,
        )
        check_alike(shared, chosen)
        archive = Archive(cache_in(cache), shared.meta, corpus_chunk_size) if cache is not None else None
        run = Run(shared, archive, pairs_of(views), lengths, k, {"batch_size": batch_size, "show_progress_bar": False})
        rows = [row for task in tqdm(chosen, desc="Funnels", disable=not show_progress_bar) for row in run.rows(task)]
    frame = pd.DataFrame(rows)
    _warn_of_short_corpora(frame)
    return FunnelResult(frame, str(shared.meta.name))


def _lengths(shortlists: int | Iterable[int], k: int) -> list[int]:
    given = list(shortlists) if isinstance(shortlists, Iterable) else [shortlists]
    lengths = sorted({positive_int(length, "shortlists") for length in given})
    if not lengths or len(lengths) < len(given):
        raise ValueError(f"shortlists: give each length once, and at least one; got {given}.")
    if lengths[0] < k:
        raise ValueError(
            f"shortlists has {lengths[0]}, which is below k={k}: no more documents can come out than the shortlist has. "
            "Make the shortlist longer, or k smaller."
        )
    return lengths


def _views(full: Size, sizes: Iterable[Size | str] | None, precisions: str | Iterable[str]) -> list[View]:
    default = sizes_product([full.num_layers], [*mrl_dims(full.dim), full.dim])
    wanted = default if sizes is None else validate_sizes(sizes, full)
    stored = [precisions] if isinstance(precisions, str) else list(precisions)
    if not stored or len(set(stored)) < len(stored):
        raise ValueError(f"Give each precision once, and at least one; got {stored}.")
    views = ascending([View(size, check_precision(precision)) for size in wanted for precision in stored])
    if not pairs_of(views):
        raise ValueError(
            f"No size is cheaper than another among {', '.join(map(str, views))}: the first of two stages has no more "
            "layers, dims and bits than the second, and less of one of them."
        )
    return views


def _warn_of_short_corpora(frame: pd.DataFrame) -> None:
    for task, of_task in frame[frame["k1"] > frame["documents"]].groupby("task", sort=False):
        lengths = ", ".join(map(str, sorted(of_task["k1"].unique())))
        warnings.warn(
            f"{task} has a corpus of {of_task['documents'].min()} documents, of which shortlists of {lengths} leave none "
            "out: that is a search with the second size alone.",
            stacklevel=3,
        )


def _check_search(task: AbsTask) -> None:
    name = task.metadata.name
    if not isinstance(task, AbsTaskRetrieval) or "Reranking" in task.metadata.type:
        raise ValueError(f"{name} is a task of type {task.metadata.type}; a funnel needs one that searches a corpus.")
    if task.skip_first_result:
        raise ValueError(f"{name} leaves out the first result of every query, so a shortlist of it has no fixed length.")
