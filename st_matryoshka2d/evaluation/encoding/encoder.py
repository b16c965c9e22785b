"""Encode once, serve every view: what mteb sees of a model cut to many sizes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from mteb.types import PromptType
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import SimilarityFunction
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from st_matryoshka2d.encode import EveryLayer
from st_matryoshka2d.evaluation.encoding.memo import Memo
from st_matryoshka2d.evaluation.processes import Processes
from st_matryoshka2d.evaluation.search.found import Found, Search
from st_matryoshka2d.evaluation.search.search import search
from st_matryoshka2d.evaluation.views.views import View
from st_matryoshka2d.identity import model_name, model_revision

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models import ModelMeta
    from mteb.types import CorpusDatasetType

__all__ = ["EncodeOnce"]

# Texts that a process embeds between two writes to disk, or two exchanges with others.
_CHUNK = 2048

_BATCHES_OF_A_STEP = 8  # of a bar

_ALONE = Processes()


def _nothing() -> None:
    """What is done after encoding where nobody asked for more."""


class EncodeOnce:
    """The embeddings of a task's texts at every depth wanted, each text through the model once per prompt.

    Which prompt a text gets, and whether `encode`, `encode_query` or `encode_document` is called, is decided by mteb's own
    wrapper of sentence-transformers models.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`; it is left as it is.
        views: What will be asked for.
        corpus_chunk_size: Documents of a retrieval task that are in memory at a time.
        shortlist: How many of the best documents under each view keep their scores under all views.
        processes: Who shares the texts; all of them ask for the same, in the same order.
        show_progress_bar: Show one for texts and one for corpora.

    Attributes:
        after_encoding: Called whenever texts or a corpus were encoded, so that others can leave out the time it took.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        views: Iterable[View],
        *,
        corpus_chunk_size: int = 4096,
        shortlist: int = 0,
        processes: Processes = _ALONE,
        show_progress_bar: bool = False,
    ) -> None:
        self.views = list(views)
        self.corpus_chunk_size = corpus_chunk_size
        self.similarity = str(SimilarityFunction(model.similarity_fn_name).value)
        self.shortlist = shortlist
        self.processes = processes
        self.show_progress_bar = show_progress_bar
        self.after_encoding: Callable[[], object] = _nothing
        self._folder: Path | None = None
        self._memos: dict[PromptType | None, Memo] = {}
        self._found: dict[str, Found] = {}
        depths = {depth for view in self.views for depth in (view.size.num_layers, view.document_layers)}
        pipeline = EveryLayer.of(model, depths)
        self._depths = list(pipeline.depths)
        with warnings.catch_warnings():
            # mteb asks for the model's width by a name that sentence-transformers has since changed
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            self._wrapper: Any = SentenceTransformerEncoderWrapper(pipeline)
        self.meta: ModelMeta = self._wrapper.mteb_model_meta.model_copy(
            update={"name": model_name(model), "revision": model_revision(model)}
        )

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: the embeddings that are there, and no model."""
        return {**self.__dict__, "_wrapper": None, "after_encoding": _nothing}

    def alone(self) -> EncodeOnce:
        """The same embeddings, for work that this process does while the others do something else."""
        by_itself = copy.copy(self)
        by_itself._wrapper, by_itself.processes = self._wrapper, _ALONE  # copying leaves the model out, as pickling does
        return by_itself

    def begin(self, folder: Path | None) -> None:
        """Forget the last task.

        Args:
            folder: Where the embeddings of the next one are also written, and taken from if they are there.

        Raises:
            ValueError: The processes do not find the same there.
        """
        there = sorted(str(path.relative_to(folder)) for path in folder.glob("texts-*/[0-9]*")) if folder else []
        if any(others != there for others in self.processes.everyones(there)):
            raise ValueError(
                f"The processes do not see the same files in {folder}; `cache` must be a folder that they share."
            )
        self._folder = folder
        self._memos.clear()
        self._found.clear()

    def embed(
        self,
        texts: Sequence[str],
        view: View,
        num_layers: int,
        *,
        task_metadata: TaskMetadata,
        prompt_type: PromptType | None,
        **kwargs: Any,
    ) -> Tensor:
        """Embeddings (texts, dim) under one view; only texts not seen before go through the model.

        Args:
            texts: Any texts.
            view: View wanted; its precision is left to others.
            num_layers: Depth of the view's queries, or of its documents.
            task_metadata: The task, which with `prompt_type` decides the prompt.
            prompt_type: Query, document or neither.
            **kwargs: What else mteb passes to `encode`.
        """
        kwargs = {"task_metadata": task_metadata, **kwargs}
        embeddings = self._by_layer(texts, [num_layers], prompt_type, **kwargs)[num_layers]
        return view.truncation(embeddings, num_layers)[:, : view.size.dim]

    def encode_queries(self, texts: Sequence[str], **kwargs: Any) -> dict[int, Tensor]:
        """Embeddings (texts, full dim) by layer, of texts that are remembered.

        Args:
            texts: Queries.
            **kwargs: What mteb passes to `encode`.
        """
        return self._by_layer(texts, self._depths, PromptType.query, **kwargs)

    def search(self, corpus: CorpusDatasetType, wanted: Search, view: View, **kwargs: Any) -> dict[str, dict[str, float]]:
        """What mteb wants of a search under one view; the corpus is read when the first view asks.

        Args:
            corpus: Documents.
            wanted: Queries, and what is asked of them.
            view: Under which view.
            **kwargs: What mteb passes to `encode`.
        """
        return self.found(corpus, wanted, **kwargs).results(self.views.index(view))

    def found(self, corpus: CorpusDatasetType, wanted: Search, **kwargs: Any) -> Found:
        """The best documents of every query under every view.

        Args:
            corpus: Documents.
            wanted: Queries, and what is asked of them.
            **kwargs: What mteb passes to `encode`.
        """
        if wanted.name not in self._found:
            name = f"search-{wanted.name}-{self.processes.rank}.safetensors"
            file = self._folder / name if self._folder is not None else None
            self._found[wanted.name] = search(self, corpus, wanted, file=file, **kwargs)
            self.after_encoding()
        return self._found[wanted.name]

    def encode_documents(self, texts: Sequence[str], bar: tqdm[Any], **kwargs: Any) -> dict[int, Tensor]:
        """Embeddings (texts, full dim) by layer, of texts that are not remembered.

        Args:
            texts: Documents.
            bar: Shows how many are done.
            **kwargs: What mteb passes to `encode`.
        """
        once = _longest_first(set(texts))
        at = {text: row for row, text in enumerate(once)}
        rows = [at[text] for text in texts]
        embeddings = self._encode_in_steps(once, bar, prompt_type=PromptType.document, **kwargs)
        return {
            depth: torch.from_numpy(embeddings[:, self._columns(embeddings.shape[1], depth)][rows]) for depth in self._depths
        }

    def _memo(self, prompt_type: PromptType | None) -> Memo:
        if prompt_type not in self._memos:
            depths = "-".join(map(str, self._depths))
            named = f"texts-{prompt_type.value if prompt_type else 'plain'}-layers-{depths}"
            self._memos[prompt_type] = Memo(self._folder / named if self._folder is not None else None)
        return self._memos[prompt_type]

    def _by_layer(
        self, texts: Sequence[str], depths: Iterable[int], prompt_type: PromptType | None, **kwargs: Any
    ) -> dict[int, Tensor]:
        memo = self._memo(prompt_type)
        try:
            rows = memo.rows(texts)
        except KeyError:
            self._fill(memo, memo.missing(texts), prompt_type=prompt_type, **kwargs)
            rows = memo.rows(texts)
        return {depth: torch.from_numpy(memo.take(rows, self._columns(memo.width, depth))) for depth in depths}

    def _fill(self, memo: Memo, missing: list[str], **kwargs: Any) -> None:
        """Encode, chunk by chunk, and each process its share."""
        rank, count = self.processes.rank, self.processes.count
        missing = _longest_first(missing)
        with tqdm(total=len(missing), desc="Texts", leave=False, disable=not self.show_progress_bar) as bar:
            for start in range(0, len(missing), _CHUNK * count):
                shares = [missing[start : start + _CHUNK * count][one::count] for one in range(count)]
                own = shares[rank], self._encode_in_steps(shares[rank], bar, **kwargs) if shares[rank] else None
                for texts, embeddings in self.processes.everyones(own):
                    if texts:
                        memo.add(texts, embeddings, write=rank == 0)
                bar.update(sum(map(len, shares)) - len(shares[rank]))
        self.after_encoding()

    def _encode_in_steps(self, texts: list[str], bar: tqdm[Any], **kwargs: Any) -> NDArray[np.floating]:
        """A few batches at a time, so that the bar moves."""
        step = _BATCHES_OF_A_STEP * kwargs.get("batch_size", 32)
        parts = []
        for start in range(0, len(texts), step):
            parts.append(self._encode(texts[start : start + step], **kwargs))
            bar.update(len(parts[-1]))
        return np.concatenate(parts)

    def _encode(self, texts: list[str], *, task_metadata: TaskMetadata, **kwargs: Any) -> NDArray[np.floating]:
        if self._wrapper is None:
            raise RuntimeError(f"{task_metadata.name} asked for texts under one size that it did not ask for under another.")
        loader = DataLoader(Dataset.from_dict({"text": texts}), batch_size=kwargs.get("batch_size", 32))
        embeddings = np.asarray(self._wrapper.encode(loader, task_metadata=task_metadata, **kwargs))
        if not np.isfinite(embeddings).all():
            broken = texts[int(np.argmin(np.isfinite(embeddings).all(axis=1)))]
            raise ValueError(f"The model's embedding of {broken[:80]!r} is not finite; no score could be trusted.")
        return embeddings

    def _columns(self, width: int, num_layers: int) -> slice:
        full = width // len(self._depths)
        start = self._depths.index(num_layers) * full
        return slice(start, start + full)


def _longest_first(texts: Iterable[str]) -> list[str]:
    """Texts of like length together, so that little is padding; in one order for all, whatever they are asked in."""
    return sorted(texts, key=lambda text: (-len(text), text))
