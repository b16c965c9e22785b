"""What mteb found for one view, as a grid of one size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytrec_eval
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS
from mteb.results import TaskResult
from numpy.typing import NDArray
from sentence_transformers.util import SimilarityFunction

from st_matryoshka2d.evaluation.grid.columns import AXES, COLUMNS, ITEM_COLUMNS
from st_matryoshka2d.evaluation.grid.result import GridResult
from st_matryoshka2d.evaluation.views.views import View

if TYPE_CHECKING:
    from mteb.types import Array

__all__ = ["cell", "query_items", "sts_items"]

# What mteb keeps beside the metrics; `main_score` is one of the metrics a second time.
_NOT_METRICS = {"main_score", "hf_subset", "languages", "mteb_version"}

# mteb's names of metrics, and trec_eval's.
_MEASURES = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "precision": "P", "hit_rate": "success"}

# How far the mean over queries may be from the score, which mteb rounds.
_CLOSE = 1e-4

Items = Mapping[tuple[str, str], tuple[list[str], NDArray[np.floating], NDArray[np.floating] | None]]


def cell(task: AbsTask, view: View, result: TaskResult, items: Items, model: str) -> GridResult:
    """Rows of one task under one view.

    Args:
        task: The task.
        view: The view.
        result: What mteb found.
        items: By split and subset: ids, values and gold values of what the main scores are made of.
        model: Name of the model.
    """
    of_view = {
        "num_layers": view.size.num_layers,
        "dim": view.size.dim,
        **view.axes,
    }
    rows = [{**row, **of_view} for row in _rows(task, result)]
    parts = [
        {"task": task.metadata.name, "split": split, "subset": subset, **of_view, "ids": ids, "values": values, "gold": gold}
        for (split, subset), (ids, values, gold) in items.items()
    ]
    return GridResult(pd.DataFrame(rows, columns=[*COLUMNS, *AXES]), pd.DataFrame(parts, columns=ITEM_COLUMNS), model)


def _rows(task: AbsTask, result: TaskResult) -> Iterator[dict[str, Any]]:
    for split, subsets in result.scores.items():
        for scores in subsets:
            for metric, score in scores.items():
                if metric in _NOT_METRICS or isinstance(score, bool) or not isinstance(score, (int, float)):
                    continue
                yield {
                    "task": task.metadata.name,
                    "split": split,
                    "subset": scores["hf_subset"],
                    "metric": metric,
                    "score": float(score),
                    "is_main": metric == task.metadata.main_score,
                }


def sts_items(task: AbsTaskSTS, pairs: Mapping[tuple[str, str], tuple[Array, Array]], similarity: str) -> Items:
    """Similarities of the pairs, and what people said of them.

    Args:
        task: A task that mteb has evaluated, with its data.
        pairs: By split and subset: the embeddings that were compared.
        similarity: Name of the model's own similarity.
    """
    kind, _, correlation = task.metadata.main_score.rpartition("_")
    if correlation not in ("spearman", "pearson"):
        return {}
    of_pairs = SimilarityFunction.to_similarity_pairwise_fn(kind or similarity)
    items = {}
    for (split, subset), (one, two) in pairs.items():
        values = np.asarray(of_pairs(one, two), dtype=float)
        loaded: Mapping[str, Any] = task.dataset or {}
        data = loaded.get(subset, loaded)[split]
        gold = np.asarray(data.select_columns("score")[:]["score"], dtype=float)
        items[split, subset] = list(map(str, range(len(values)))), values, gold
    return items


def query_items(
    task: AbsTaskRetrieval, result: TaskResult, rankings: Mapping[tuple[str, str], dict[str, dict[str, float]]]
) -> Items:
    """The main metric of each query; none where its mean is not the main score.

    Args:
        task: A task that mteb has evaluated, with its data.
        result: What mteb found.
        rankings: By split and subset: similarities by query and document.
    """
    items = {}
    for (split, subset), ranking in rankings.items():
        score = next(scores["main_score"] for scores in result.scores[split] if scores["hf_subset"] == subset)
        by_query = _by_query(task, task.dataset[subset][split]["relevant_docs"], ranking)
        if by_query and abs(np.mean(list(by_query.values())) - score) < _CLOSE:
            items[split, subset] = list(by_query), np.array(list(by_query.values())), None
    return items


def _by_query(
    task: AbsTaskRetrieval, relevant: Mapping[str, Mapping[str, int]], ranking: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    name, _, cut = task.metadata.main_score.partition("_at_")
    if task.skip_first_result:
        ranking = {query: dict(_sorted(found)[1:]) for query, found in ranking.items()}
    if name == "mrr":
        return {
            query: next(
                (
                    1 / place
                    for place, (doc, _) in enumerate(_sorted(found)[: int(cut)], 1)
                    if relevant[query].get(doc, 0) > 0
                ),
                0.0,
            )
            for query, found in ranking.items()
            if query in relevant
        }
    if name not in _MEASURES:
        return {}
    measure = _MEASURES[name]
    found = pytrec_eval.RelevanceEvaluator(relevant, {f"{measure}.{cut}"}).evaluate(ranking)
    return {query: float(scores[f"{measure}_{cut}"]) for query, scores in found.items()}


def _sorted(found: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(found.items(), key=lambda pair: pair[1], reverse=True)
