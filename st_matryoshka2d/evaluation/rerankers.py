"""Score every depth of a reranker: it ranks the candidates of each query anew, and mteb computes the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.models import ModelMeta
from mteb.types import CorpusDatasetType, EncodeKwargs, QueryDatasetType
from numpy.typing import NDArray
from sentence_transformers.util import batch_to_device
from tqdm.auto import tqdm

from st_matryoshka2d._hosts.mteb import quiet_mteb, random_states_kept
from st_matryoshka2d._hosts.mteb_texts import document_texts
from st_matryoshka2d.cutting.cut import cut_to
from st_matryoshka2d.cutting.exactness import check_routes
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.mteb_adapter import Ranking, as_grid, items_of, meta_of, result_of
from st_matryoshka2d.evaluation.tasks import data_of, fresh, parts_of
from st_matryoshka2d.evaluation.variants import Variant
from st_matryoshka2d.grid.grid_result import GridResult
from st_matryoshka2d.model.every_score import EveryScore
from st_matryoshka2d.model.identity import model_name, model_revision
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.sizes import Size, positive_int
from st_matryoshka2d.texts import chosen_prompt

Pair = tuple[str, str]


class PairScores:
    """The scores of pairs at every depth; each pair goes through the model once."""

    def __init__(self, pipeline: Pipeline, depths: Iterable[int], batch_size: int, show_progress_bar: bool) -> None:
        whole = replace(Pipeline.of(cut_to(pipeline).train(False), pipeline.kind.cls), layers=pipeline.layers)
        check_routes(whole, depths)
        self.depths = sorted(set(depths))
        self._every, self._whole = EveryScore(whole, self.depths), whole
        self._batch_size, self._hidden = positive_int(batch_size, "batch_size"), not show_progress_bar
        self._known: dict[Pair, NDArray[np.floating]] = {}

    @torch.inference_mode()
    def __call__(self, pairs: Sequence[Pair]) -> NDArray[np.floating]:
        """Return scores, (pairs, depths)."""
        model = self._whole.model
        new = sorted({*pairs} - self._known.keys(), key=lambda pair: -sum(map(len, pair)))
        prompt = chosen_prompt(model, None, None)
        with tqdm(total=len(new), desc="Pairs", leave=False, disable=self._hidden) as bar:
            for start in range(0, len(new), self._batch_size):
                batch: list[Any] = new[start : start + self._batch_size]
                scores = self._every(batch_to_device(model.preprocess(batch, prompt=prompt), model.device))
                rows = torch.stack([scores[depth].float().flatten() for depth in self.depths], 1).cpu().numpy()
                self._known.update(zip(batch, rows, strict=True))
                bar.update(len(batch))
        if pairs and not np.isfinite(found := np.stack([self._known[pair] for pair in pairs])).all():
            raise UsageError("A score of the reranker is not finite. Usually it runs in float16: load it in float32.")
        return found if pairs else np.zeros((0, len(self.depths)))


class RerankerAtDepth:
    """One depth of a reranker as a model: implements mteb's `SearchProtocol`."""

    def __init__(self, scores: PairScores, variant: Variant, meta: ModelMeta) -> None:
        self._scores, self._place = scores, scores.depths.index(variant.size.num_layers)
        self._corpus: CorpusDatasetType | None = None
        self.rankings: dict[tuple[str, str], Ranking] = {}
        self.mteb_model_meta = meta_of(meta, variant)

    def index(self, corpus: CorpusDatasetType, **kwargs: Any) -> None:
        """Store the corpus for `search`."""
        self._corpus = corpus

    def search(
        self,
        queries: QueryDatasetType,
        *,
        hf_split: str,
        hf_subset: str,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> Ranking:
        """Return the candidates of each query with their scores, best first."""
        if self._corpus is None or top_ranked is None:
            raise RuntimeError("Call index before search, and pass top_ranked.")
        rows = {name: row for row, name in enumerate(self._corpus["id"])}
        asked = dict(zip(queries["id"], queries["text"], strict=True))
        listed = [(query, document) for query in asked for document in top_ranked.get(query, ())]
        wanted = sorted({rows[document] for _, document in listed})
        texts = dict(zip(wanted, document_texts(self._corpus.select(wanted)[:]), strict=True))
        scores = self._scores([(asked[query], texts[rows[document]]) for query, document in listed])[:, self._place]
        ranking: dict[str, dict[str, float]] = {query: {} for query in asked}
        for place in np.argsort(-scores, kind="stable").tolist():
            query, document = listed[place]
            ranking[query][document] = float(scores[place])
        self.rankings[hf_split, hf_subset] = ranking
        return ranking


def score_reranker(
    pipeline: Pipeline, tasks: Sequence[AbsTask], depths: Sequence[int], *, batch_size: int, show_progress_bar: bool
) -> GridResult:
    """Score depths of a reranker on tasks with candidates."""
    if pipeline.full.dim != 1:
        raise UsageError(
            f"The model has {pipeline.full.dim} scores for a pair, so it does not rank. A reranker with one score is needed."
        )
    parts = [part for task in tasks for part in parts_of(task)]
    if no := [part.metadata.name for part in parts if not isinstance(part, AbsTaskRetrieval)]:
        raise UsageError(f"A reranker is scored on tasks with queries and candidates; {no[0]} has none.")
    identity = {"name": model_name(pipeline.model), "revision": model_revision(pipeline.model, pipeline.layers)}
    reranker: Any = pipeline.model
    meta = ModelMeta.from_cross_encoder(reranker).model_copy(update=identity)
    settings: EncodeKwargs = {"batch_size": batch_size, "show_progress_bar": False}
    grids = []
    with random_states_kept():
        for task in parts:
            scores = PairScores(pipeline, depths, batch_size, show_progress_bar)
            with data_of(task):
                _require_candidates(task)
                for number, depth in enumerate(scores.depths):
                    variant, again = Variant(Size(depth, 1)), fresh(task)
                    model: Any = RerankerAtDepth(scores, variant, meta)
                    with quiet_mteb() if number else random_states_kept():
                        result = result_of(model, again, settings)
                    grids.append(as_grid(again, variant, result, items_of(again, result, model), str(meta.name)))
    grid = GridResult.merge(grids)
    return replace(grid, revision=str(meta.revision), full_size=str(pipeline.full), layers=pipeline.layers.named)


def _require_candidates(task: AbsTask) -> None:
    """Refuse a task that does not say which documents of each query are to be ranked."""
    for split in (split for subset in (task.dataset or {}).values() for split in subset.values()):
        if not split.get("top_ranked"):
            raise UsageError(
                f"{task.metadata.name} has no candidates, and a reranker cannot search a corpus. Take one of mteb's "
                "reranking tasks, or pass the first documents of each query: retrieval_task(..., "
                "candidates={query: [document, ...]})."
            )
