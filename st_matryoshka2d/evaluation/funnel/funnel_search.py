"""What mteb searches with, so that its tasks decide what is searched for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from st_matryoshka2d.evaluation.encoding.encoder import EncodeOnce
from st_matryoshka2d.evaluation.search.found import Found, Search

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.types import CorpusDatasetType, EncodeKwargs, QueryDatasetType, TopRankedDocumentsType

__all__ = ["FunnelSearch"]


class FunnelSearch:
    """mteb's `SearchProtocol`: keeps what is found under all views.

    Args:
        shared: Reads a corpus once for all views, and keeps the candidates of funnels.

    Example:
        >>> import mteb
        >>> from st_matryoshka2d import Size, retrieval_task
        >>> from st_matryoshka2d.evaluation.views.views import View
        >>> search = FunnelSearch(EncodeOnce(model, [View(Size(6, 64)), View(Size(6, 384))], shortlist=2))
        >>> task = retrieval_task({"d1": "a kitten", "d2": "rain", "d3": "chess"}, {"q1": "small cat"}, {"q1": ["d1"]})
        >>> _ = mteb.evaluate(search, task, cache=None, show_progress_bar=False)
        >>> found, documents = search.found["test", "default"]
        >>> found.candidates[0].scores.shape[0], documents
        (2, 3)
    """

    def __init__(self, shared: EncodeOnce) -> None:
        self._shared = shared
        self._corpus: CorpusDatasetType | None = None
        self.mteb_model_meta = shared.meta
        # By split and subset, with how many documents there are.
        self.found: dict[tuple[str, str], tuple[Found, int]] = {}

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
        encode_kwargs: EncodeKwargs,
        top_ranked: TopRankedDocumentsType | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """The best documents under the last view; as many as a shortlist has, whatever mteb asks for."""
        if self._corpus is None:
            raise RuntimeError("index comes before search.")
        if top_ranked is not None:
            raise ValueError(f"{task_metadata.name} gives each query its candidates; a funnel searches a corpus for them.")
        told = {"task_metadata": task_metadata, "hf_split": hf_split, "hf_subset": hf_subset, **encode_kwargs}
        wanted = Search(f"{hf_split}-{hf_subset}", queries, self._shared.shortlist)
        found = self._shared.found(self._corpus, wanted, **told)
        self.found[hf_split, hf_subset] = found, len(self._corpus)
        return found.results(len(found.views) - 1)
