"""Score every size of a model on mteb tasks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from numpy.typing import ArrayLike
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch import Tensor

from st_matryoshka2d.encoding.existing_embeddings import Existing
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.choices import (
    document_sizes,
    keeping,
    require_none,
    require_search,
    require_whole_documents,
    sizes_to_score,
)
from st_matryoshka2d.evaluation.rerankers import score_reranker
from st_matryoshka2d.evaluation.run import score_variants
from st_matryoshka2d.evaluation.store import Cache
from st_matryoshka2d.evaluation.tasks import Tasks, chosen_tasks
from st_matryoshka2d.evaluation.variants import Variant, precisions_of
from st_matryoshka2d.grid.grid_result import GridResult
from st_matryoshka2d.grid.grid_tables import AXES
from st_matryoshka2d.model.layers import Choice
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import least_depth
from st_matryoshka2d.model.sides import sides_of
from st_matryoshka2d.sizes import Size, full_size


def evaluate(
    model: SentenceTransformer | CrossEncoder,
    tasks: Tasks,
    num_layers: int | Iterable[int] | None = None,
    dims: int | Iterable[int] | None = None,
    sizes: Iterable[Size | str] | None = None,
    *,
    layers: Choice | Sequence[int] | None = None,
    documents: Size | str | Iterable[Size | str] | None = None,
    embeddings: ArrayLike | Tensor | str | os.PathLike[str] | None = None,
    precisions: str | Iterable[str] = AXES["precision"],
    cache: Cache = None,
    n_jobs: int = 1,
    batch_size: int = 32,
    corpus_chunk_size: int = 4096,
    show_progress_bar: bool = True,
) -> GridResult:
    """Score a model at many sizes; each text goes through the model once per task and prompt.

    Scores equal those of `mteb.evaluate(truncate(model, num_layers, dim), task)`, up to rounding. A
    corpus is read once, in chunks, and may be larger than memory. The processes of `torchrun` or
    `accelerate launch` embed together: call this with the same arguments in each, and all return
    the whole grid.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`, or with a `Router` over
            several of one depth. An `asymmetric` model is scored at its own depths, by search, at
            each of `dims`. A `CrossEncoder` is scored at its depths on tasks with candidates: mteb's
            reranking tasks, or `retrieval_task(..., candidates=...)`; `dims`, `documents`,
            `embeddings` and `cache` are not for it.
        tasks: One or several mteb text tasks or benchmarks, or their names, such as `"NanoBEIR"`.
            `sts_task`, `pair_task`, `retrieval_task` and `classification_task` make a task from
            your own data.
        num_layers: Depths, each 1..N, or 0 for a token table; None for all.
        dims: Widths, each 1..D; None for 8, 16, 32, ... below D, and D.
        sizes: Sizes, instead of all pairs of `num_layers` and `dims`.
        layers: Which layers the depths keep: `"first"`, `"ends"`, `"spread"`, or a dict such as
            `{3: [1, 5, 6]}`, as for `align`; a list is the only depth then. None for those that the
            model was aligned or trained with, otherwise `"ends"`. `"first"` scores all depths in one forward
            pass; `"ends"` runs the last layers of each again, 2.3 passes in all for a model of 6
            layers, 3.9 for one of 12.
        documents: One or several document sizes, such as `"6L-384d"`, which queries of every size
            then search by the dims that both have. In pair tasks, the second texts are the
            documents. None: documents have the size of the query.
        embeddings: An index that exists: embeddings of the corpus of one retrieval task by all layers,
            in its order, as for `fit_queries`. The corpus is not embedded, and `documents` are of
            all layers. Some rows are compared with the model.
        precisions: Number types of the stored coordinates, as in mteb's `CompressionWrapper`:
            `"float32"`, `"float16"`, `"bfloat16"`, `"int8"`, `"uint8"`, `"int4"`, `"uint4"`,
            `"binary"`, one or several. Integers are scaled to the range of the texts that are
            encoded together; for a corpus, of its first `corpus_chunk_size` documents.
        cache: A folder or mteb's `ResultCache`. Each result is saved at once, under the name of the
            model and a hash of its weights and settings, and a killed run resumes from there. None
            disables caching.
        n_jobs: Processes that fit mteb's classifiers and clusterings in parallel. Scores do not
            depend on it.
        batch_size: Texts per forward pass.
        corpus_chunk_size: Documents of a retrieval task that are in memory at a time.
        show_progress_bar: Show progress bars for the texts and for the scores.

    Raises:
        TypeError: The model is not a `SentenceTransformer`, or a task is not a task.
        ValueError: A size exceeds the model or is wider than `documents`; there is no task; a task
            is unknown, repeated, not a text task or, with `documents`, does not compare texts;
            depths are given for an asymmetric model; a precision is unknown; an embedding is not
            finite; `embeddings` are not those of the corpus by this model.

    Example:
        >>> grid = evaluate(model, task, num_layers=[3, 6], dims=[64, 384], show_progress_bar=False)
        >>> print(*grid.sizes)
        3L-64d 3L-384d 6L-64d 6L-384d
        >>> grid.score("6L-384d") > grid.score("3L-64d")
        True

        A small encoder for queries and the whole model for documents:

        >>> across = evaluate(model, task, num_layers=3, dims=[64, 384], documents="6L-384d", show_progress_bar=False)
        >>> across.document_sizes
        ['6L-384d']
    """
    if isinstance(model, CrossEncoder):
        only = {"dims": dims, "documents": documents, "embeddings": embeddings, "cache": cache}
        return _of_reranker(
            Pipeline.of(model, CrossEncoder), tasks, num_layers, sizes, layers, only, batch_size, show_progress_bar
        )
    stored, chosen = precisions_of(precisions), chosen_tasks(tasks)
    if pair := sides_of(model):
        require_none(num_layers=num_layers, sizes=sizes, documents=documents, layers=layers)
        require_search(chosen)
        full, of_documents = map(full_size, pair.values())
        # its depths are given, and a table may embed the queries
        num_layers, documents, least, pipeline = [full.num_layers], of_documents, 0, None
    else:
        pipeline = Pipeline.of(model)
        full, of_documents, least = pipeline.full, pipeline.full, least_depth(model)
    wanted = sizes_to_score(num_layers, dims, sizes, full, least, layers)
    if pipeline is not None:
        pipeline = keeping(pipeline, layers, wanted)
    existing = None
    if embeddings is not None:
        documents = of_documents if documents is None else documents
        existing = Existing(embeddings, "documents", str(of_documents), of_documents.dim)
    sides = document_sizes(documents, of_documents, least, chosen, wanted, all_dims=sizes is None and dims is None)
    if existing is not None:
        require_whole_documents(chosen, sides, of_documents)
    cells = product(sides, stored, wanted)
    variants = [Variant(size, as_, documents=side) for side, as_, size in cells if side is None or size.dim <= side.dim]
    how: dict[str, Any] = {"n_jobs": n_jobs, "batch_size": batch_size, "corpus_chunk_size": corpus_chunk_size}
    how |= {"cache": cache, "existing": existing, "show_progress_bar": show_progress_bar}
    whole: Any = pipeline or model
    grid = score_variants(whole, chosen, variants, **how)
    return grid if pipeline is None else replace(grid, layers=pipeline.layers.named)


def _of_reranker(
    pipeline: Pipeline,
    tasks: Tasks,
    num_layers: int | Iterable[int] | None,
    sizes: Iterable[Size | str] | None,
    layers: Choice | Sequence[int] | None,
    only: Mapping[str, object],
    batch_size: int,
    show_progress_bar: bool,
) -> GridResult:
    """Score depths of a reranker; refuse what is meant for embeddings alone."""
    if given := [name for name, value in only.items() if value is not None]:
        raise UsageError(f"A reranker has no embeddings: leave {', '.join(given)} out.")
    wanted = sizes_to_score(num_layers, None if sizes else pipeline.full.dim, sizes, pipeline.full, 1, layers)
    depths = sorted({size.num_layers for size in wanted})
    pipeline = keeping(pipeline, layers, wanted)
    return score_reranker(pipeline, chosen_tasks(tasks), depths, batch_size=batch_size, show_progress_bar=show_progress_bar)
