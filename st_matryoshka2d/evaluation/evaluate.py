"""Score every size of a model on mteb tasks, and one depth of it narrowed in several ways."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from mteb.abstasks.sts import AbsTaskSTS
from sentence_transformers import SentenceTransformer

from st_matryoshka2d.evaluation.grid import GridResult
from st_matryoshka2d.evaluation.grid_io import AXES
from st_matryoshka2d.evaluation.run import score_variants
from st_matryoshka2d.evaluation.store import Cache
from st_matryoshka2d.evaluation.tasks import Tasks, chosen_tasks, parts_of
from st_matryoshka2d.evaluation.truncation import TruncationResult, truncation_dims
from st_matryoshka2d.evaluation.variants import FIRST, Truncation, Variant, precisions_of
from st_matryoshka2d.layers import routes_of
from st_matryoshka2d.narrowing import PCA, RandomSubset, Window
from st_matryoshka2d.sizes import Size, all_within, full_size, mrl_dims, positive_int, sizes_product, validate_sizes, within

# Tasks with two sides: a query and a document, or the first and the second text of a pair.
_COMPARING = (AbsTaskRetrieval, AbsTaskSTS, AbsTaskPairClassification)


def evaluate(
    model: SentenceTransformer,
    tasks: Tasks,
    num_layers: int | Iterable[int] | None = None,
    dims: int | Iterable[int] | None = None,
    sizes: Iterable[Size | str] | None = None,
    *,
    documents: Size | str | Iterable[Size | str] | None = None,
    precisions: str | Iterable[str] = AXES["precision"],
    cache: Cache = None,
    n_jobs: int = 1,
    batch_size: int = 32,
    corpus_chunk_size: int = 4096,
    show_progress_bar: bool = True,
) -> GridResult:
    """Score a model cut to many sizes, each text through the model once per task and prompt.

    Each score is that of `mteb.evaluate(truncate(model, num_layers, dim), task)`, to rounding. A corpus is read once, in
    chunks, and may be larger than memory. Under `torchrun` or `accelerate launch` the processes share the work; each has to
    call this with the same arguments, and all return the whole grid.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`, or with a `Router` over several of one depth.
        tasks: One or several mteb tasks of text, task names or benchmarks; `sts_task`, `retrieval_task` and
            `classification_task` make tasks of data of your own.
        num_layers: Depths, each 1..N; None for all.
        dims: Widths, each 1..D; None for 8, 16, 32, ... below D, and D.
        sizes: Sizes, instead of all pairs of `num_layers` and `dims`.
        documents: One or several sizes of the documents, such as `"6L-384d"`: queries at every size search documents of this
            one, of which they use as many dims as they have. In tasks of pairs, the second texts are the documents. None:
            documents of the query's own size.
        precisions: What a coordinate is stored in after the cut, as mteb's `CompressionWrapper` makes it: one or several of
            `"float32"`, `"float16"`, `"bfloat16"`, `"int8"`, `"uint8"`, `"int4"`, `"uint4"` and `"binary"`. Integers are
            spread over the ranges of what is encoded together; in a corpus, of its first `corpus_chunk_size` documents.
        cache: A folder or mteb's `ResultCache`: each size's result is written there as soon as it is known, under the name
            of the model and a hash of its weights and settings, and a run that was killed goes on where it stopped. None
            reads and writes nothing.
        n_jobs: Processes that score sizes at a time where mteb fits classifiers or clusters; the scores are the same.
        batch_size: Texts in a batch of the model.
        corpus_chunk_size: Documents of a retrieval task that are in the memory of a process at a time.
        show_progress_bar: Show one step for each task and size.

    Raises:
        TypeError: The model is not a `SentenceTransformer`, or a task is not a task.
        ValueError: A size is not within the model, or wider than `documents`; tasks are none, unknown, repeated, not of text
            alone or, with `documents`, do not compare texts; a precision is unknown; an embedding is not finite.

    Example:
        >>> grid = evaluate(model, task, num_layers=[3, 6], dims=[64, 384], show_progress_bar=False)
        >>> print(*grid.sizes)
        3L-64d 3L-384d 6L-64d 6L-384d
        >>> grid.score("6L-384d") > grid.score("3L-64d")
        True

        A small encoder for queries, the whole model for documents:

        >>> across = evaluate(model, task, num_layers=3, dims=[64, 384], documents="6L-384d", show_progress_bar=False)
        >>> across.document_sizes
        ['6L-384d']
    """
    routes_of(model)
    full = full_size(model)
    if sizes is not None:
        if num_layers is not None or dims is not None:
            raise ValueError("Give sizes, or num_layers and dims (all their pairs are scored); both were given.")
        wanted = validate_sizes(sizes, full)
    else:
        layers = range(1, full.num_layers + 1) if num_layers is None else num_layers
        widths = [*mrl_dims(full.dim), full.dim] if dims is None else dims
        wanted = sizes_product(all_within(layers, full.num_layers, "num_layers"), all_within(widths, full.dim, "dims"))
    stored = precisions_of(precisions)
    chosen = chosen_tasks(tasks)
    sides = _document_sizes(documents, full, chosen, wanted, all_dims=sizes is None and dims is None)
    variants = [
        Variant(size, precision, documents=side)
        for side, precision, size in product(sides, stored, wanted)
        if side is None or size.dim <= side.dim
    ]
    settings = {"cache": cache, "n_jobs": n_jobs, "batch_size": batch_size, "show_progress_bar": show_progress_bar}
    return score_variants(model, chosen, variants, corpus_chunk_size=corpus_chunk_size, **settings)


def _document_sizes(
    documents: Size | str | Iterable[Size | str] | None, full: Size, tasks: list[AbsTask], sizes: list[Size], all_dims: bool
) -> Sequence[Size | None]:
    """Sizes of the documents; None stands for that of the queries."""
    if documents is None:
        return [None]
    found = validate_sizes([documents] if isinstance(documents, Size | str) else documents, full)
    for part in (part for task in tasks for part in parts_of(task)):
        if not isinstance(part, _COMPARING):
            raise ValueError(
                f"documents={', '.join(map(str, found))} needs tasks that compare two texts (retrieval, reranking, STS, "
                f"pair classification); {part.metadata.name} is of the type {part.metadata.type}. Score it without."
            )
    fits = [(size, side) for side in found for size in sizes if size.dim <= side.dim]
    asked = [] if all_dims else sizes  # of the default dims, those that are too wide are left out
    if alone := [*(set(asked) - {size for size, _ in fits}), *(set(found) - {side for _, side in fits})]:
        raise ValueError(
            f"{min(alone)} is left without a partner: queries have at most as many dims as the documents. "
            f"The queries are at {', '.join(map(str, sizes))}; the documents at {', '.join(map(str, found))}."
        )
    return found


def evaluate_truncations(
    model: SentenceTransformer,
    tasks: Tasks,
    dims: int | Iterable[int] | None = None,
    *,
    num_layers: int | None = None,
    seeds: int | Iterable[int] = 5,
    windows: Iterable[int] | None = None,
    pca_texts: Iterable[str] | None = None,
    cache: Cache = None,
    n_jobs: int = 1,
    batch_size: int = 32,
    show_progress_bar: bool = True,
) -> TruncationResult:
    """Find out whether a model needs matryoshka training at the dims you want.

    The first coordinates are compared with random subsets and windows of as many coordinates, and with principal components.
    Where a random subset does as well, the coordinates are in no order that training could have made ("To MRL or not to
    MRL").

    Args:
        model: As for `evaluate`.
        tasks: As for `evaluate`.
        dims: Widths, each 1..D; None for the paper's, which remove up to 92 or 94 %. The full one is always scored.
        num_layers: The depth; None for all layers.
        seeds: How many random subsets, or the seeds themselves; at least two.
        windows: How many coordinates lie before each window; None for a quarter, a half and three quarters of D.
        pca_texts: A sample of more than D texts to find principal components of; not those of the task, which would flatter
            them. None leaves them out.
        cache: As for `evaluate`.
        n_jobs: As for `evaluate`.
        batch_size: Texts in a batch of the model.
        show_progress_bar: Show how far the evaluation is.

    Raises:
        TypeError: The model is not a `SentenceTransformer`, a task is not a task, or a number is not an integer.
        ValueError: A dim, depth or window is not within the model, no dim is below D, or seeds or `pca_texts` are too few.

    Example:
        >>> result = evaluate_truncations(model, task, [192, 96], num_layers=1, seeds=2, show_progress_bar=False)
        >>> result.verdict()[["dim", "removed"]].to_dict("list")
        {'dim': [192, 96], 'removed': [50, 75]}
        >>> result.grid.truncations
        ['first', 'random-0', 'random-1', 'window-96', 'window-192', 'window-288']
    """
    routes_of(model)
    full = full_size(model)
    depth = full.num_layers if num_layers is None else within(num_layers, full.num_layers, "num_layers")
    wanted = truncation_dims(full.dim) if dims is None else all_within(dims, full.dim, "dim")
    narrow = sorted({*wanted} - {full.dim}, reverse=True)
    if not narrow:
        raise ValueError(f"dims must have one below the full {full.dim}; nothing is removed otherwise.")
    # A permutation of all coordinates scores as they do in order: only what is narrower is scored.
    permuted: list[Truncation] = [*map(RandomSubset, _seeds(seeds)), *_windows(windows, full.dim)]
    chosen = chosen_tasks(tasks)
    whole: list[Truncation] = [FIRST]
    if pca_texts is not None:
        whole.append(PCA.fit(model, pca_texts, depth, batch_size=batch_size, show_progress_bar=show_progress_bar))
    variants = [Variant(Size(depth, dim), truncation=one) for one in whole for dim in (full.dim, *narrow)]
    variants += [Variant(Size(depth, dim), truncation=one) for one in permuted for dim in narrow]
    settings = {"cache": cache, "n_jobs": n_jobs, "batch_size": batch_size, "show_progress_bar": show_progress_bar}
    return TruncationResult(score_variants(model, chosen, variants, **settings))


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    given = list(seeds) if isinstance(seeds, Iterable) else list(range(positive_int(seeds, "seeds")))
    if len(set(given)) < max(2, len(given)):
        raise ValueError(f"seeds: give at least two, each once; got {given}.")
    return given


def _windows(starts: Iterable[int] | None, full_dim: int) -> list[Window]:
    given = list(dict.fromkeys(full_dim * n // 4 for n in (1, 2, 3)) if starts is None else starts)
    windows = [Window(start) for start in given]
    if wrong := [start for start in given if start >= full_dim or given.count(start) > 1]:
        raise ValueError(f"windows: {wrong[0]} is given more than once, or is not below {full_dim}, the dims of the model.")
    return windows
