"""One view as a model of its own, as mteb sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from mteb.types import PromptType
from numpy.typing import NDArray
from sentence_transformers.util import SimilarityFunction
from torch import Tensor
from torch.utils.data import DataLoader

from st_matryoshka2d.evaluation.encoding.encoder import EncodeOnce
from st_matryoshka2d.evaluation.grid.columns import AXES
from st_matryoshka2d.evaluation.search.found import Search
from st_matryoshka2d.evaluation.views.precision import quantise
from st_matryoshka2d.evaluation.views.views import View

if TYPE_CHECKING:
    from datasets import Dataset
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.types import Array, BatchedInput, CorpusDatasetType, QueryDatasetType

__all__ = ["ViewEncoder"]


class ViewEncoder:
    """One view as a model of its own: mteb's `EncoderProtocol` and `SearchProtocol`.

    Args:
        shared: Where the embeddings are.
        view: Which part of them.

    Example:
        >>> import mteb
        >>> from st_matryoshka2d import Size
        >>> views = [View(Size(3, 64)), View(Size(6, 384))]
        >>> shared = EncodeOnce(model, views)
        >>> results = mteb.evaluate(ViewEncoder(shared, views[0]), task, cache=None, show_progress_bar=False)
        >>> results.task_results[0].task_name
        'DemoSTS'
    """

    def __init__(self, shared: EncodeOnce, view: View) -> None:
        self._shared = shared
        self._view = view
        self._corpus: CorpusDatasetType | None = None
        self.rankings: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
        self.pairs: dict[tuple[str, str], tuple[Array, Array]] = {}
        self._asked_for = ("", "")
        self._calls = 0
        # mteb tells results apart by name, revision and these: two views that shared them would share one score.
        experiment: dict[str, Any] = {"num_layers": view.size.num_layers, "embed_dim": view.size.dim}
        named = {"precision": "output_dtypes"}  # what mteb has a name for
        experiment |= {named.get(axis, axis): value for axis, value in view.axes.items() if value != AXES[axis]}
        update = {"embed_dim": view.size.dim, "experiment_kwargs": experiment}
        self.mteb_model_meta = shared.meta.model_copy(update=update)

    def encode(
        self,
        inputs: DataLoader[BatchedInput],
        *,
        task_metadata: TaskMetadata,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> NDArray[np.floating]:
        """Embeddings (texts, dim), not normalised again."""
        self._asked_for = kwargs.get("hf_split", ""), kwargs.get("hf_subset", "")
        texts = cast("Dataset", inputs.dataset)[:]["text"]  # at once: the loader would go row by row
        # A task of pairs asks for all first texts, then for all second ones.
        layers = self._view.document_layers if self._calls % 2 else self._view.size.num_layers
        self._calls += 1
        kept = self._shared.embed(texts, self._view, layers, task_metadata=task_metadata, prompt_type=prompt_type, **kwargs)
        return quantise(kept, self._view.precision).numpy()

    def index(self, corpus: CorpusDatasetType, **kwargs: Any) -> None:
        """Take note of the corpus."""
        self._corpus = corpus

    def search(
        self,
        queries: QueryDatasetType,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: dict[str, Any],
        top_ranked: dict[str, list[str]] | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """The best documents of each query, with their similarities."""
        if self._corpus is None:
            raise RuntimeError("index comes before search.")
        wanted = Search(f"{hf_split}-{hf_subset}", queries, top_k, top_ranked)
        told = {"task_metadata": task_metadata, "hf_split": hf_split, "hf_subset": hf_subset, **encode_kwargs}
        results = self._shared.search(self._corpus, wanted, self._view, **told)
        self.rankings[hf_split, hf_subset] = results
        return results

    def similarity(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """The model's own similarity of all pairs, (texts 1, texts 2)."""
        return SimilarityFunction.to_similarity_fn(self._shared.similarity)(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """The model's own similarity of text i to text i, (texts,); what was compared is in `pairs`, by split and subset."""
        self.pairs[self._asked_for] = embeddings1, embeddings2
        return SimilarityFunction.to_similarity_pairwise_fn(self._shared.similarity)(embeddings1, embeddings2)
