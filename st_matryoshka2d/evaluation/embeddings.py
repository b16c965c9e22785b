"""Embeddings of a task's texts at several layers; each text goes through the model once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from mteb.models import ModelMeta
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from mteb.types import PromptType
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import SimilarityFunction
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from st_matryoshka2d._hosts.sentence_transformers import SortedByTokens
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.encoding.existing_embeddings import CHECKED, Embed, Existing
from st_matryoshka2d.evaluation.embedding_cache import Memo
from st_matryoshka2d.evaluation.processes import Encode
from st_matryoshka2d.model.identity import model_name, model_revision
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.sides import DOCUMENT, QUERY, sides_of, with_modules
from st_matryoshka2d.texts import require_finite

_CHUNK = 2048  # texts that are embedded between two writes to disk
_BATCHES_PER_STEP = 8  # of the progress bar, and in each process


class TextEncoder:
    """A model that embeds texts at several layers; mteb's own wrapper chooses the prompt and the method."""

    def __init__(
        self, model: SentenceTransformer | Pipeline, depths: Iterable[int], document_depths: Iterable[int] | None = None
    ) -> None:
        self.model, layers = (model.model, model.layers) if isinstance(model, Pipeline) else (model, None)
        sides = sides_of(self.model)  # each has one depth
        of_documents = {*depths} if document_depths is None else {*document_depths}
        self.depths = tuple(sorted({*depths} if sides else {*depths} | of_documents))
        # Only queries need the other depths, and a corpus is long.
        self.document_depths = tuple(sorted(of_documents))
        self.similarity = str(SimilarityFunction(self.model.similarity_fn_name).value)
        encoders = self._of_sides(sides) if sides else self._of_depths(model)
        self._wrappers: dict[tuple[int, ...], Any] = {
            depths: SentenceTransformerEncoderWrapper(encoder) for depths, encoder in encoders.items()
        }
        identity = {"name": model_name(self.model), "revision": model_revision(self.model, layers)}
        self.meta: ModelMeta = self._wrappers[self.depths].mteb_model_meta.model_copy(update=identity)

    def __call__(self, texts: list[str], depths: tuple[int, ...], **kwargs: Any) -> NDArray[np.floating]:
        """Return embeddings (texts, depths * full dim)."""
        loader = DataLoader(Dataset.from_dict({"text": texts}), batch_size=kwargs.get("batch_size", 32))
        return np.asarray(self._wrappers[depths].encode(loader, **kwargs))

    def _of_depths(self, model: SentenceTransformer | Pipeline) -> dict[tuple[int, ...], SentenceTransformer]:
        """Return the model that embeds at each group of depths, in full width."""
        return {wanted: EveryLayer.of(model, wanted) for wanted in {self.depths, self.document_depths}}

    def _of_sides(self, sides: Mapping[str, SentenceTransformer]) -> dict[tuple[int, ...], SentenceTransformer]:
        """Return the side of an asymmetric model that embeds at each depth, in full width."""
        wide = {name: with_modules(side, dict(side.named_children()), SortedByTokens) for name, side in sides.items()}
        return {self.depths: wide[QUERY], self.document_depths: wide[DOCUMENT]}


class Embeddings:
    """The embeddings of one task's texts, each text through the model once per prompt.

    Args:
        encoder: The model.
        encode: Encodes as the model does, perhaps with the help of other processes.
        processes: Number of processes that encode.
        folder: Where to save embeddings, so that a killed run resumes.
        show_progress_bar: Show a progress bar.
        existing: Embeddings of the corpus, which is not embedded then.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        encode: Encode | None = None,
        *,
        processes: int = 1,
        folder: Path | None = None,
        show_progress_bar: bool = False,
        existing: Existing | None = None,
    ) -> None:
        self.existing = existing
        self.similarity, self.meta, self.folder = encoder.similarity, encoder.meta, folder
        self.show_progress_bar = show_progress_bar
        self._depths, self._document_depths = encoder.depths, encoder.document_depths
        self._encode: Encode | None = encode or encoder
        self._processes = processes
        self._memos: dict[PromptType | None, Memo] = {}

    def __getstate__(self) -> dict[str, Any]:
        """State for another process: the embeddings, without the model."""
        return {**self.__dict__, "_encode": None}

    def of_texts(
        self, texts: Sequence[str], depths: Iterable[int] | None = None, *, prompt_type: PromptType | None, **kwargs: Any
    ) -> dict[int, Tensor]:
        """Return embeddings (texts, full dim) by layer; only new texts go through the model."""
        if prompt_type not in self._memos:
            name = f"texts-{prompt_type.value if prompt_type else 'plain'}-layers-{'-'.join(map(str, self._depths))}"
            self._memos[prompt_type] = Memo(self.folder / name if self.folder is not None else None)
        memo = self._memos[prompt_type]
        try:
            rows = memo.rows(texts)
        except KeyError:
            missing = _longest_first(memo.missing(texts))
            with tqdm(total=len(missing), desc="Texts", leave=False, disable=not self.show_progress_bar) as bar:
                for start in range(0, len(missing), _CHUNK):
                    chunk = missing[start : start + _CHUNK]
                    memo.add(chunk, self._encoded(chunk, self._depths, bar, prompt_type=prompt_type, **kwargs))
            rows = memo.rows(texts)
        full = memo.width // len(self._depths)
        starts = {depth: self._depths.index(depth) * full for depth in (self._depths if depths is None else depths)}
        return {depth: torch.from_numpy(memo.take(rows, slice(start, start + full))) for depth, start in starts.items()}

    def of_documents(self, texts: Sequence[str], start: int, bar: tqdm[Any], **kwargs: Any) -> dict[int, Tensor]:
        """Return embeddings (texts, full dim) of a chunk of a corpus, from row `start` on, by document layer."""
        depths, kwargs = self._document_depths, {**kwargs, "bar": bar, "prompt_type": PromptType.document}
        if self.existing is not None:
            rows_of_chunk = self._existing(self.existing, texts, start, lambda few: self._encoded(few, depths, **kwargs))
            return {depths[0]: torch.from_numpy(rows_of_chunk)}
        once = _longest_first(set(texts))
        at = {text: row for row, text in enumerate(once)}
        rows = [at[text] for text in texts]
        embeddings = self._encoded(once, depths, **kwargs)
        by_depth = embeddings.reshape(len(once), len(depths), -1)
        return {depth: torch.from_numpy(by_depth[rows, place]) for place, depth in enumerate(depths)}

    @staticmethod
    def _existing(existing: Existing, texts: Sequence[str], start: int, embed: Embed) -> NDArray[np.floating]:
        """Read the embeddings of a chunk; compare some of them with the model's."""
        while existing.taken < start:  # of chunks that a killed run has scored
            existing.take(min(len(texts), start - existing.taken))
        rows = existing.take(len(texts))
        few = [place for place in range(0, len(texts), max(1, len(texts) // CHECKED)) if texts[place]]
        existing.require_same([(start + place, texts[place]) for place in few], rows[few], embed)
        return rows

    def _encoded(self, texts: list[str], depths: tuple[int, ...], bar: tqdm[Any], **kwargs: Any) -> NDArray[np.floating]:
        """Encode a few batches at a time, so that the progress bar moves."""
        if self._encode is None:
            raise RuntimeError(f"{kwargs['task_metadata'].name} requested other texts for one size than for another.")
        step = _BATCHES_PER_STEP * kwargs.get("batch_size", 32) * self._processes
        parts = []
        for start in range(0, len(texts), step):
            few = texts[start : start + step]
            parts.append(self._encode(few, depths=depths, **kwargs))
            require_finite(parts[-1], few)
            bar.update(len(few))
        return np.concatenate(parts)


def _longest_first(texts: Iterable[str]) -> list[str]:
    """Sort by length to avoid padding, then by text, so that batches do not depend on the order of the input."""
    return sorted(texts, key=lambda text: (-len(text), text))
