"""Present one variant to mteb as a model, and convert mteb's result to a grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, cast

import mteb
import numpy as np
import pandas as pd
import pytrec_eval
from datasets import Dataset
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS
from mteb.models import ModelMeta
from mteb.results import TaskResult
from mteb.types import Array, BatchedInput, CorpusDatasetType, EncodeKwargs, PromptType, QueryDatasetType
from numpy.typing import NDArray
from sentence_transformers.util import SimilarityFunction
from torch import Tensor
from torch.utils.data import DataLoader

from st_matryoshka2d.evaluation.search import Queries, TaskSearch
from st_matryoshka2d.evaluation.variants import Variant, quantise
from st_matryoshka2d.grid.grid_result import GridResult
from st_matryoshka2d.grid.grid_tables import AXES, COLUMNS, ITEM_COLUMNS, Items

Place = tuple[str, str]  # split and subset
ItemsOf = dict[tuple[str, str, str], Items]  # split, subset and metric
Ranking = Mapping[str, Mapping[str, float]]


def meta_of(whole: ModelMeta, variant: Variant) -> ModelMeta:
    """Return the metadata of a variant; mteb distinguishes results by name, revision and these additions."""
    axes = {axis: value for axis, value in variant.axes.items() if value != AXES[axis]}
    if "precision" in axes:
        axes["output_dtypes"] = axes.pop("precision")  # mteb's own name
    experiment = {"num_layers": variant.size.num_layers, "embed_dim": variant.size.dim, **axes}
    return whole.model_copy(update={"embed_dim": variant.size.dim, "experiment_kwargs": experiment})


class VariantModel:
    """One variant as a model: implements mteb's `EncoderProtocol` and `SearchProtocol`."""

    def __init__(self, search: TaskSearch, variant: Variant) -> None:
        self._search, self._variant = search, variant
        self._corpus: CorpusDatasetType | None = None
        self._place = ("", "")
        self._sides: Counter[Place] = Counter()
        self.rankings: dict[Place, Ranking] = {}
        self.pairs: dict[Place, tuple[Array, Array]] = {}
        self.own_similarity = search.embeddings.similarity
        self.mteb_model_meta = meta_of(search.embeddings.meta, variant)

    def encode(
        self, inputs: DataLoader[BatchedInput], *, prompt_type: PromptType | None = None, **kwargs: Any
    ) -> NDArray[np.floating]:
        """Return embeddings (texts, dim), not normalised again."""
        self._place = kwargs.get("hf_split", ""), kwargs.get("hf_subset", "")
        # faster than the loader, which reads row by row
        texts = cast("Dataset", inputs.dataset)[:]["text"]
        layers = self._layers()
        whole = self._search.embeddings.of_texts(texts, [layers], prompt_type=prompt_type, **kwargs)[layers]
        narrow = self._variant.truncation(whole)[:, : self._variant.size.dim]
        return quantise(narrow, self._variant.precision).numpy()

    def _layers(self) -> int:
        """Return the depth of the next texts: of each split and subset, mteb embeds the first texts of pairs first."""
        if self._variant.documents is None:
            return self._variant.size.num_layers
        self._sides[self._place] += 1
        if (side := self._sides[self._place]) > 2:
            raise RuntimeError(f"mteb embedded {side} sides of the pairs of {' '.join(self._place)}; a pair has two texts.")
        return self._variant.size.num_layers if side == 1 else self._variant.document_layers

    def index(self, corpus: CorpusDatasetType, **kwargs: Any) -> None:
        """Store the corpus for `search`."""
        self._corpus = corpus

    def search(
        self,
        queries: QueryDatasetType,
        *,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: EncodeKwargs,
        **kwargs: Any,
    ) -> Ranking:
        """Return the best documents of each query with their similarities."""
        if self._corpus is None:
            raise RuntimeError("Call index before search.")
        of_place = Queries(f"{hf_split}-{hf_subset}", queries, top_k, kwargs.get("top_ranked"))
        place = {"task_metadata": kwargs["task_metadata"], "hf_split": hf_split, "hf_subset": hf_subset}
        best = self._search.best_documents(self._corpus, of_place, **place, **encode_kwargs)
        ranking = best.of_variant(self._search.variants.index(self._variant))
        self.rankings[hf_split, hf_subset] = ranking
        return ranking

    def similarity(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """Compute the model's similarity of all pairs, (texts 1, texts 2)."""
        return SimilarityFunction.to_similarity_fn(self.own_similarity)(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """Compute the model's similarity of text i to text i, (texts,), and store both embeddings in `pairs`."""
        self.pairs[self._place] = embeddings1, embeddings2
        return SimilarityFunction.to_similarity_pairwise_fn(self.own_similarity)(embeddings1, embeddings2)


def result_of(model: Any, task: AbsTask, encode_kwargs: EncodeKwargs) -> TaskResult:
    """Evaluate a variant with mteb."""
    settings: dict[str, Any] = {"cache": None, "co2_tracker": False, "show_progress_bar": False}
    return mteb.evaluate(model, task, encode_kwargs=encode_kwargs.copy(), **settings).task_results[0]


# Names of metrics in mteb and in trec_eval.
_MEASURES = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "precision": "P", "hit_rate": "success"}
_RECIPROCAL_RANK = "recip_rank"  # without a cut
_CLOSE = 1e-4  # tolerance between the mean over queries and the score, which mteb rounds

# Metrics whose scores of single queries are kept beside those of the main metric: the ones that
# papers on search compare.
_COMPARED = ("ndcg_at_10", "mrr_at_10", "recall_at_100")


def as_grid(task: AbsTask, variant: Variant, result: TaskResult, items: ItemsOf, model: str) -> GridResult:
    """Convert mteb's result for one variant to a grid of one size."""
    cell: dict[str, str | int] = {
        "task": task.metadata.name,
        "num_layers": variant.size.num_layers,
        "dim": variant.size.dim,
        **variant.axes,
    }
    rows = [
        {**cell, "split": split, "subset": scores["hf_subset"], "metric": metric, "score": float(score)}
        for split, subsets in result.scores.items()
        for scores in subsets
        for metric, score in scores.items()
        # `main_score` repeats one of the metrics; values that are not numbers are no metrics.
        if metric != "main_score" and isinstance(score, (int, float)) and not isinstance(score, bool)
    ]
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *AXES])
    frame["is_main"] = frame["metric"] == task.metadata.main_score
    parts = [
        {**cell, "split": split, "subset": subset, "metric": metric, **of_metric._asdict()}
        for (split, subset, metric), of_metric in items.items()
    ]
    return GridResult(frame, pd.DataFrame(parts, columns=ITEM_COLUMNS), model)


def items_of(task: AbsTask, result: TaskResult, model: Any) -> ItemsOf:
    """Collect the items of scores: similarities of pairs, or metrics of each query."""
    if isinstance(task, AbsTaskSTS):
        return _of_pairs(task, model)
    return _of_queries(task, result, model) if isinstance(task, AbsTaskRetrieval) else {}


def _of_pairs(task: AbsTaskSTS, model: VariantModel) -> ItemsOf:
    kind, _, correlation = task.metadata.main_score.rpartition("_")
    if correlation not in ("spearman", "pearson"):
        return {}
    of_pairs = SimilarityFunction.to_similarity_pairwise_fn(kind or model.own_similarity)
    items = {}
    for (split, subset), (first, second) in model.pairs.items():
        values = np.asarray(of_pairs(first, second), dtype=float)
        loaded: Mapping[str, Any] = task.dataset or {}
        gold = np.asarray(loaded.get(subset, loaded)[split].select_columns("score")[:]["score"], dtype=float)
        items[split, subset, task.metadata.main_score] = Items(list(map(str, range(len(values)))), values, gold)
    return items


def _of_queries(task: AbsTaskRetrieval, result: TaskResult, model: Any) -> ItemsOf:
    """Collect metrics of each query; splits whose main score is not the mean over queries are skipped."""
    items: ItemsOf = {}
    main = task.metadata.main_score
    for (split, subset), ranking in model.rankings.items():
        scores = next(scores for scores in result.scores[split] if scores["hf_subset"] == subset)
        by_metric = _by_query(dict.fromkeys([main, *_COMPARED]), task, task.dataset[subset][split]["relevant_docs"], ranking)
        right = {
            name: of_name for name, of_name in by_metric.items() if abs(_mean(of_name) - scores.get(name, np.inf)) < _CLOSE
        }
        if main in right:  # a file holds the ids with the main score
            items |= {(split, subset, name): of_name for name, of_name in right.items()}
    return items


def _by_query(
    metrics: Iterable[str], task: AbsTaskRetrieval, relevant: Mapping[str, Mapping[str, int]], ranking: Ranking
) -> dict[str, Items]:
    """Compute each metric of each query; metrics that trec_eval does not have are left out."""
    if task.skip_first_result:
        # best first
        ranking = {query: dict(islice(documents.items(), 1, None)) for query, documents in ranking.items()}
    measures = {metric: measure for metric in metrics if (measure := _measure(metric))}
    by_query = pytrec_eval.RelevanceEvaluator(relevant, set(measures.values())).evaluate(ranking)
    ids, items = list(by_query), {}
    for metric, measure in measures.items():
        values = np.array([scores[measure.replace(".", "_")] for scores in by_query.values()], dtype=float)
        if measure == _RECIPROCAL_RANK:
            values[values < 1 / int(metric.rpartition("_")[2])] = 0.0
        items[metric] = Items(ids, values, None)
    return items


def _mean(items: Items) -> float:
    return float(items.values.mean()) if items.ids else np.nan


def _measure(metric: str) -> str:
    """Name a metric of mteb as trec_eval does; empty if trec_eval does not have it."""
    name, _, cut = metric.partition("_at_")
    if name == "mrr":
        return _RECIPROCAL_RANK
    return f"{_MEASURES[name]}.{cut}" if name in _MEASURES else ""
