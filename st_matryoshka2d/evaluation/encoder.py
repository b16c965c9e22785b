"""Encode once, serve every size: what mteb sees of a model cut to many sizes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from mteb.types import PromptType
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.utils.data import DataLoader

from st_matryoshka2d.encode import EveryLayer
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.types import Array, BatchedInput

__all__ = ["EncodeOnce", "SizeEncoder"]


class EncodeOnce:
    """The embeddings of a task's texts at every depth wanted, each text through the model once per prompt.

    Which prompt a text gets, and whether `encode`, `encode_query` or `encode_document` is called, is decided by mteb's own
    wrapper of sentence-transformers models.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`; it is left as it is.
        sizes: Sizes that will be asked for.

    Example:
        >>> import mteb
        >>> shared = EncodeOnce(model, [Size(3, 64), Size(6, 384)])
        >>> results = mteb.evaluate(shared.at(Size(3, 64)), task, cache=None, show_progress_bar=False)
        >>> results.task_results[0].task_name
        'DemoSTS'
    """

    def __init__(self, model: SentenceTransformer, sizes: Iterable[Size]) -> None:
        self.pipeline = EveryLayer.of(model, (size.num_layers for size in sizes))
        with warnings.catch_warnings():
            # mteb asks for the model's width by a name that sentence-transformers has since changed
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            self._wrapper = SentenceTransformerEncoderWrapper(self.pipeline)
        self.meta = self._wrapper.mteb_model_meta.model_copy(update=_identity(model))
        self._memos: dict[tuple[str, PromptType | None], _Memo] = {}

    def at(self, size: Size) -> SizeEncoder:
        """The encoder that mteb evaluates for one size."""
        return SizeEncoder(self, size)

    def embed(
        self,
        inputs: DataLoader[BatchedInput],
        *,
        task_metadata: TaskMetadata,
        prompt_type: PromptType | None,
        size: Size,
        **kwargs: Any,
    ) -> NDArray[np.floating]:
        """Embeddings (texts, dim) of one size; only texts not seen before go through the model.

        Args:
            inputs: Batches that hold their texts under `"text"`.
            task_metadata: The task, which with `prompt_type` decides the prompt.
            prompt_type: Query, document or neither.
            size: Size wanted.
            **kwargs: What else mteb passes to `encode`.
        """
        memo = self._memos.setdefault((task_metadata.name, prompt_type), _Memo())
        texts = [text for batch in inputs for text in batch["text"]]
        if missing := [text for text in dict.fromkeys(texts) if text not in memo.rows]:
            loader = DataLoader(Dataset.from_dict({"text": missing}), batch_size=inputs.batch_size)
            memo.add(missing, self._wrapper.encode(loader, task_metadata=task_metadata, prompt_type=prompt_type, **kwargs))
        of_size: NDArray[np.floating] = self.pipeline.split(memo.embeddings, size)
        return of_size[[memo.rows[text] for text in texts]]

    def forget(self) -> None:
        """Free all embeddings."""
        self._memos.clear()


class SizeEncoder:
    """One size as a model of its own: mteb's `EncoderProtocol`.

    Args:
        shared: Where the embeddings are.
        size: Which part of them.
    """

    def __init__(self, shared: EncodeOnce, size: Size) -> None:
        self._shared = shared
        self._size = size
        # mteb tells results apart by name, revision and these: two sizes that shared them would share one score.
        experiment = {"num_layers": size.num_layers, "embed_dim": size.dim}
        self.mteb_model_meta = shared.meta.model_copy(update={"embed_dim": size.dim, "experiment_kwargs": experiment})

    def encode(
        self,
        inputs: DataLoader[BatchedInput],
        *,
        task_metadata: TaskMetadata,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> NDArray[np.floating]:
        """Embeddings (texts, dim), not normalised again."""
        return self._shared.embed(inputs, task_metadata=task_metadata, prompt_type=prompt_type, size=self._size, **kwargs)

    def similarity(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """The model's own similarity of all pairs, (texts 1, texts 2)."""
        return self._shared.pipeline.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """The model's own similarity of text i to text i, (texts,)."""
        return self._shared.pipeline.similarity_pairwise(embeddings1, embeddings2)


def _identity(model: SentenceTransformer) -> dict[str, str]:
    """Name and revision as mteb would read them from the model itself; the pipeline made of it has neither."""
    card = model.model_card_data
    known = {"name": card.model_name or card.base_model, "revision": card.base_model_revision}
    return {field: value for field, value in known.items() if value}


class _Memo:
    """Texts and their embeddings at every depth."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.embeddings: NDArray[np.floating] = np.empty((0, 0))

    def add(self, texts: list[str], embeddings: Any) -> None:
        """Append texts that are not there yet; `embeddings` is (texts, depths x full dim)."""
        new = np.asarray(embeddings)
        self.embeddings = np.concatenate([self.embeddings, new]) if self.rows else new
        self.rows.update({text: row for row, text in enumerate(texts, start=len(self.rows))})
