"""Score two-stage search with pairs of sizes: the first makes a shortlist, the second re-ranks it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import groupby, permutations
from operator import le
from typing import Any

import numpy as np
import pandas as pd
import pytrec_eval
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.types import EncodeKwargs
from sentence_transformers import SentenceTransformer

from st_matryoshka2d.evaluation.mteb_adapter import VariantModel, result_of
from st_matryoshka2d.evaluation.run import Run, running
from st_matryoshka2d.evaluation.search import CorpusSearch
from st_matryoshka2d.evaluation.search_state import Found
from st_matryoshka2d.evaluation.store import Cache, Job, Scored
from st_matryoshka2d.evaluation.tasks import Tasks, chosen_tasks, fresh, parts_of
from st_matryoshka2d.evaluation.variants import Variant, precisions_of
from st_matryoshka2d.grid.costs import vector_bytes
from st_matryoshka2d.grid.funnel_result import FunnelResult
from st_matryoshka2d.grid.grid_tables import AXES
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.token_table import least_depth
from st_matryoshka2d.sizes import Size, mrl_dims, positive_int, sizes_product, validate_sizes

Funnel = tuple[int, int, int]  # first variant, second variant, length of the shortlist
Relevance = Mapping[str, Mapping[str, int]]


def evaluate_funnel(
    model: SentenceTransformer,
    tasks: Tasks,
    sizes: Iterable[Size | str] | None = None,
    *,
    documents: Size | str | None = None,
    shortlists: int | Iterable[int] = (20, 50, 100),
    k: int = 10,
    precisions: str | Iterable[str] = AXES["precision"],
    cache: Cache = None,
    batch_size: int = 32,
    corpus_chunk_size: int = 4096,
    show_progress_bar: bool = True,
) -> FunnelResult:
    """Score two-stage search: a small size makes a shortlist of k1 documents, and a larger size re-ranks it.

    All pairs are scored in which the first size has no more layers, dims and bits than the second, and fewer of at least
    one. Both stages search exactly; an approximate index loses something on top of that. The first stage is only cheaper
    by its dims and bits, because the model runs up to the layer of the second. Processes share the work as in `evaluate`.

    Args:
        model: As for `evaluate`.
        tasks: One or several mteb retrieval tasks, task names or benchmarks, or tasks made by `retrieval_task`.
        sizes: Candidate sizes for both stages; None for all layers with 8, 16, 32, ... and all dims.
        documents: Size of the documents in both stages, such as `"6L-384d"`; `sizes` are then query sizes. Needs a model
            whose sizes share one space, such as `align` makes. None: each stage has queries and documents of one size.
        shortlists: Lengths k1 of the shortlist, each at least k. Memory grows with the longest one, the number of queries,
            and up to the square of the number of sizes.
        k: Number of documents in the final result.
        precisions: As for `evaluate`; every size is scored in each.
        cache: As for `evaluate`; one result per task.
        batch_size: Texts per forward pass.
        corpus_chunk_size: Documents in memory at a time.
        show_progress_bar: Show a progress bar.

    Raises:
        TypeError: The model is not a `SentenceTransformer`, or a task is not a task.
        ValueError: A size exceeds the model or is wider than `documents`; no size is cheaper than another; a shortlist
            is shorter than k; a task does not search a corpus (STS, reranking, ...).

    Warns:
        UserWarning: A shortlist is longer than a corpus, so the first stage excludes nothing.

    Example:
        >>> from st_matryoshka2d import retrieval_task
        >>> corpus = {"d1": "a kitten sleeps", "d2": "rain is falling", "d3": "he plays chess", "d4": "a cat and a dog"}
        >>> task = retrieval_task(corpus, {"q1": "tired kitten", "q2": "wet weather"}, {"q1": ["d1"], "q2": ["d2"]})
        >>> result = evaluate_funnel(model, task, ["6L-4d", "6L-384d"], shortlists=[1, 3], k=1, show_progress_bar=False)
        >>> result.to_frame()[["first", "second", "k1", "recall_at_k1", "ndcg", "ndcg_alone"]]
           first   second  k1  recall_at_k1  ndcg  ndcg_alone
        0  6L-4d  6L-384d   1           0.5   0.5         1.0
        1  6L-4d  6L-384d   3           1.0   1.0         1.0

        A shallow query makes the shortlist, a deeper one re-ranks it, and the documents are embedded by the whole model:

        >>> settings = {"documents": "6L-384d", "shortlists": 3, "k": 1, "show_progress_bar": False}
        >>> across = evaluate_funnel(model, task, ["3L-64d", "6L-384d"], **settings)
        >>> across.firsts, across.seconds, across.document_size
        (['3L-64d'], ['6L-384d'], '6L-384d')
    """
    full = Pipeline.of(model).full
    chosen = chosen_tasks(tasks)
    _check_tasks(chosen)
    lengths = _lengths(shortlists, positive_int(k, "k"))
    variants = _variants(full, least_depth(model), sizes, documents, precisions)
    funnels = [(first, second, k1) for first, second in pairs_of(variants) for k1 in lengths]
    arguments = json.dumps([[str(variant) for variant in variants], lengths, int(k), int(corpus_chunk_size)])
    name = f"funnels-{blake2b(arguments.encode(), digest_size=6).hexdigest()}"
    job = Job(name, FunnelResult, partial(_score, variants, funnels, k))
    settings: dict[str, Any] = {"cache": cache, "batch_size": batch_size, "corpus_chunk_size": corpus_chunk_size}
    settings["shortlist"] = lengths[-1] + 1  # a document with the id of the query may be dropped
    with running(model, chosen, variants, what="Funnels", show_progress_bar=show_progress_bar, **settings) as run:
        frames = [_rows(run, job, task, part) for task in chosen for part in parts_of(task)]
    frame = pd.concat(frames, ignore_index=True)
    for short, of_task in frame[frame["k1"] > frame["documents"]].groupby("task", sort=False):
        warnings.warn(
            f"{short} has a corpus of {of_task['documents'].min()} documents. Shortlists of "
            f"{', '.join(map(str, sorted(of_task['k1'].unique())))} contain all of them: that is a search with the second "
            "size alone.",
            stacklevel=2,
        )
    return FunnelResult(frame, str(run.embeddings.meta.name), variants[0].axes["documents"])


def _check_tasks(tasks: Sequence[AbsTask]) -> None:
    for part in (part for task in tasks for part in parts_of(task)):
        kind, name = part.metadata.type, part.metadata.name
        if not isinstance(part, AbsTaskRetrieval) or "Reranking" in kind:
            raise ValueError(f"{name} is a task of type {kind}; a funnel needs one that searches a corpus.")
        if part.skip_first_result:
            raise ValueError(f"{name} drops the first result of each query, so its shortlists have no fixed length.")


def _lengths(shortlists: int | Iterable[int], k: int) -> list[int]:
    given = list(shortlists) if isinstance(shortlists, Iterable) else [shortlists]
    lengths = sorted({positive_int(length, "shortlists") for length in given})
    if not lengths or len(lengths) < len(given):
        raise ValueError(f"shortlists: give each length once, and at least one; got {given}.")
    if lengths[0] < k:
        raise ValueError(f"shortlists has {lengths[0]}, which is below k={k}: make the shortlist longer, or k smaller.")
    return lengths


def _variants(
    full: Size,
    least: int,
    sizes: Iterable[Size | str] | None,
    documents: Size | str | None,
    precisions: str | Iterable[str],
) -> list[Variant]:
    side = None if documents is None else validate_sizes([documents], full, "documents", least)[0]
    widest = (side or full).dim
    default = sizes_product([full.num_layers], [*mrl_dims(widest), widest])
    wanted, stored = default if sizes is None else validate_sizes(sizes, full, least=least), precisions_of(precisions)
    if wide := [size for size in wanted if size.dim > widest]:
        raise ValueError(f"{wide[0]} is wider than the documents, {side}. Choose narrower query sizes or wider documents.")
    variants = [Variant(size, precision, documents=side) for size in wanted for precision in stored]
    # Smallest vectors first; of vectors that are as large, fewest layers first.
    variants.sort(key=lambda one: (vector_bytes(one.size.dim, one.precision), one.size, one.precision))
    if not pairs_of(variants):
        raise ValueError(
            f"No size is cheaper than another among {', '.join(map(_query_of, variants))}: the first stage must have no "
            "more layers, dims and bits than the second, and fewer of at least one."
        )
    return variants


def _query_of(variant: Variant) -> str:
    """Name the query size of a variant; the document size is the same in all funnels."""
    return str(replace(variant, documents=None))


def _rows(run: Run, job: Job[FunnelResult], task: AbsTask, part: AbsTask) -> pd.DataFrame:
    """Return the rows of a task, or of a part of an aggregate, as a subset."""
    rows = run.results(part, [job])[0].result.frame
    if part is task:
        return rows
    return rows.assign(task=task.metadata.name, subset=f"{part.metadata.name}/" + rows["subset"])


def _score(
    variants: list[Variant], funnels: list[Funnel], k: int, search: CorpusSearch, task: AbsTask, encode_kwargs: EncodeKwargs
) -> Scored[FunnelResult]:
    """Score all funnels on a task that is not an aggregate; mteb starts the search."""
    model = VariantModel(search, variants[-1])
    again: Any = fresh(task)
    result_of(model, again, encode_kwargs)
    longest = max(k1 for _, _, k1 in funnels)
    # To score a variant alone, let it re-rank its own longest shortlist.
    alone = {second: (second, second, longest) for _, second, _ in funnels}
    asked = [*funnels, *alone.values()]
    rows = []
    for (split, subset), found in model.found.items():
        relevance = again.dataset[subset][split]["relevant_docs"]
        scores = funnel_scores(found, relevance, asked, k, ignore_identical_ids=again.ignore_identical_ids)
        score_of = dict(zip(asked, scores, strict=True))
        place = {"task": task.metadata.name, "split": split, "subset": subset, "k": k}
        place |= {"queries": len(found.query_ids), "documents": found.documents}
        for first, second, k1 in funnels:
            names = {"first": _query_of(variants[first]), "second": _query_of(variants[second]), "k1": k1}
            whole = {f"{name}_alone": score_of[alone[second]][name] for name in ("ndcg", "recall")}
            costs = stage_costs(variants[first], variants[second], k1, found.documents)
            rows.append({**place, **names, **score_of[first, second, k1], **whole, **costs})
    return Scored(FunnelResult(pd.DataFrame(rows), str(search.embeddings.meta.name), variants[0].axes["documents"]))


def funnel_scores(
    found: Found, relevance: Relevance, funnels: Sequence[Funnel], k: int, *, ignore_identical_ids: bool
) -> list[dict[str, float]]:
    """Return for each funnel the mean recall of the shortlist, and the mean nDCG and recall of the final k documents."""
    lengths = sorted({k, *(k1 for _, _, k1 in funnels)})
    grades = {query: {doc: max(grade, 0) for doc, grade in relevance[query].items()} for query in found.query_ids}
    judge = pytrec_eval.RelevanceEvaluator(grades, {f"ndcg_cut.{k}", f"recall.{','.join(map(str, lengths))}"})
    totals = np.zeros((len(funnels), 3))
    for block in found.blocks():
        # From the rankings, not from the candidates: among tied documents, the candidates favour those of other variants.
        listed = [
            {query: [doc for doc in docs if doc != query or not ignore_identical_ids] for query, docs in of_first.items()}
            for of_first in map(block.results, range(1 + max(first for first, _, _ in funnels)))
        ]
        by_second = sorted(range(len(funnels)), key=lambda place: funnels[place][1])
        for second, places in groupby(by_second, key=lambda place: funnels[place][1]):
            scores = block.candidate_scores(second)
            for place in places:
                first, _, k1 = funnels[place]
                out = {query: {doc: scores[query][doc] for doc in docs[:k1]} for query, docs in listed[first].items()}
                for judged in judge.evaluate(out).values():
                    totals[place] += judged[f"recall_{k1}"], judged[f"ndcg_cut_{k}"], judged[f"recall_{k}"]
    means = totals / len(found.query_ids)
    return [dict(zip(("recall_at_k1", "ndcg", "recall"), row, strict=True)) for row in means.tolist()]


def pairs_of(variants: Sequence[Variant]) -> list[tuple[int, int]]:
    """List the pairs whose first variant is cheaper: no more layers, dims and bits, and fewer of at least one."""
    costs = [(variant.size.num_layers, variant.size.dim, vector_bytes(8, variant.precision)) for variant in variants]
    return [
        (first, second)
        for first, second in permutations(range(len(variants)), 2)
        if costs[first] != costs[second] and all(map(le, costs[first], costs[second]))
    ]


def stage_costs(first: Variant, second: Variant, k1: int, documents: int) -> dict[str, int]:
    """Return the bytes stored per document and the multiply-adds computed per query."""
    return {
        "first_bytes": vector_bytes(first.size.dim, first.precision),
        "second_bytes": vector_bytes(second.size.dim, second.precision),
        "first_multiply_adds": documents * first.size.dim,
        "second_multiply_adds": min(k1, documents) * second.size.dim,
        "alone_multiply_adds": documents * second.size.dim,
    }
