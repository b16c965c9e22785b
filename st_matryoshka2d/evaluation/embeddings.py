"""Texts to embeddings at every layer wanted, each text through the model once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from mteb.models import ModelMeta
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from mteb.types import PromptType
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import SimilarityFunction
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from st_matryoshka2d.encode import EveryLayer
from st_matryoshka2d.evaluation.tasks import quiet_mteb
from st_matryoshka2d.files import replace_file
from st_matryoshka2d.identity import model_name, model_revision
from st_matryoshka2d.processes import Processes

_CHUNK = 2048  # texts that a process embeds between two writes to disk, or two exchanges with others
_BATCHES_OF_A_STEP = 8  # of a bar
_DIGEST = 16  # bytes
_ALONE = Processes()


def _nothing() -> None: ...


class Embeddings:
    """The embeddings of a task's texts at several layers, each text through the model once per prompt.

    Which prompt a text gets, and whether `encode`, `encode_query` or `encode_document` is called, is decided by mteb's own
    wrapper of sentence-transformers models. Processes that share the texts ask for the same, in the same order.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        depths: Iterable[int],
        *,
        processes: Processes = _ALONE,
        show_progress_bar: bool = False,
    ) -> None:
        self.similarity = str(SimilarityFunction(model.similarity_fn_name).value)
        self.processes = processes
        self.show_progress_bar = show_progress_bar
        self.after_encoding: Callable[[], object] = _nothing  # so that others can leave out the time it took
        self.folder: Path | None = None
        self._memos: dict[PromptType | None, Memo] = {}
        pipeline = EveryLayer.of(model, depths)
        self._depths = list(pipeline.depths)
        with quiet_mteb(FutureWarning, DeprecationWarning):  # it asks for the width by a name that is no longer used
            self._wrapper: Any = SentenceTransformerEncoderWrapper(pipeline)
        self.meta: ModelMeta = self._wrapper.mteb_model_meta.model_copy(
            update={"name": model_name(model), "revision": model_revision(model)}
        )

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: the embeddings that are there, and no model."""
        return {**self.__dict__, "_wrapper": None, "after_encoding": _nothing}

    def alone(self) -> Embeddings:
        """The same embeddings, for work that this process does while the others do something else."""
        by_itself = copy.copy(self)
        by_itself._wrapper, by_itself.processes = self._wrapper, _ALONE  # copying leaves the model out, as pickling does
        return by_itself

    def begin(self, folder: Path | None) -> None:
        """Forget the last task; the embeddings of the next are also in the folder, as far as they are known."""
        there = sorted(str(path.relative_to(folder)) for path in folder.glob("texts-*/[0-9]*")) if folder else []
        if any(others != there for others in self.processes.everyones(there)):
            raise ValueError(f"The processes see different files in {folder}; `cache` must be a folder that they share.")
        self.folder = folder
        self._memos.clear()

    def of_texts(
        self, texts: Sequence[str], depths: Iterable[int] | None = None, *, prompt_type: PromptType | None, **kwargs: Any
    ) -> dict[int, Tensor]:
        """Embeddings (texts, full dim) by layer; only texts not seen before go through the model."""
        if prompt_type not in self._memos:
            name = f"texts-{prompt_type.value if prompt_type else 'plain'}-layers-{'-'.join(map(str, self._depths))}"
            self._memos[prompt_type] = Memo(self.folder / name if self.folder is not None else None)
        memo = self._memos[prompt_type]
        try:
            rows = memo.rows(texts)
        except KeyError:
            self._fill(memo, memo.missing(texts), prompt_type=prompt_type, **kwargs)
            rows = memo.rows(texts)
        wanted = self._depths if depths is None else depths
        return {depth: torch.from_numpy(memo.take(rows, self._columns(memo.width, depth))) for depth in wanted}

    def of_documents(self, texts: Sequence[str], bar: tqdm[Any], **kwargs: Any) -> dict[int, Tensor]:
        """Embeddings (texts, full dim) by layer, of a corpus: they are not remembered."""
        once = _longest_first(set(texts))
        at = {text: row for row, text in enumerate(once)}
        rows = [at[text] for text in texts]
        embeddings = self._encode(once, bar, prompt_type=PromptType.document, **kwargs)
        width = embeddings.shape[1]
        return {depth: torch.from_numpy(embeddings[:, self._columns(width, depth)][rows]) for depth in self._depths}

    def _fill(self, memo: Memo, missing: list[str], **kwargs: Any) -> None:
        """Encode, chunk by chunk, and each process its share."""
        rank, count = self.processes.rank, self.processes.count
        missing = _longest_first(missing)
        with tqdm(total=len(missing), desc="Texts", leave=False, disable=not self.show_progress_bar) as bar:
            for start in range(0, len(missing), _CHUNK * count):
                shares = [missing[start : start + _CHUNK * count][one::count] for one in range(count)]
                own = shares[rank], self._encode(shares[rank], bar, **kwargs) if shares[rank] else None
                for texts, embeddings in self.processes.everyones(own):
                    if texts:
                        memo.add(texts, embeddings, write=rank == 0)
                bar.update(sum(map(len, shares)) - len(shares[rank]))
        self.after_encoding()

    def _encode(self, texts: list[str], bar: tqdm[Any], **kwargs: Any) -> NDArray[np.floating]:
        """A few batches at a time, so that the bar moves."""
        if self._wrapper is None:
            raise RuntimeError(f"{kwargs['task_metadata'].name} asked for other texts under one size than under another.")
        batch_size = kwargs.get("batch_size", 32)
        step = _BATCHES_OF_A_STEP * batch_size
        parts = []
        for few in (texts[start : start + step] for start in range(0, len(texts), step)):
            loader = DataLoader(Dataset.from_dict({"text": few}), batch_size=batch_size)
            parts.append(np.asarray(self._wrapper.encode(loader, **kwargs)))
            finite = np.isfinite(parts[-1]).all(axis=1)
            if not finite.all():
                broken = few[int(np.argmin(finite))][:80]
                raise ValueError(f"The model's embedding of {broken!r} is not finite; no score could be trusted.")
            bar.update(len(few))
        return np.concatenate(parts)

    def _columns(self, width: int, num_layers: int) -> slice:
        full, place = width // len(self._depths), self._depths.index(num_layers)
        return slice(place * full, (place + 1) * full)


class Memo:
    """Embeddings by text, appended to in chunks; in a folder each chunk is also a file, which is whole or absent."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._rows: dict[bytes, int] = {}
        self._chunks: list[NDArray[np.floating]] = []
        self._files = 0
        for path in sorted(folder.glob("[0-9]*.safetensors")) if folder is not None else ():
            try:
                with safe_open(path, framework="numpy") as chunk:
                    self._append([row.tobytes() for row in chunk.get_tensor("texts")], chunk.get_tensor("embeddings"))
            except SafetensorError as error:
                raise ValueError(f"{path} is broken; delete it, and its texts are embedded again. {error}") from error

    @property
    def width(self) -> int:
        """Columns of the embeddings."""
        return int(self._chunks[0].shape[1])

    def missing(self, texts: Iterable[str]) -> list[str]:
        """Those that have no embedding yet, each once."""
        return [text for text in dict.fromkeys(texts) if _digest(text) not in self._rows]

    def add(self, texts: Sequence[str], embeddings: NDArray[np.floating], *, write: bool = True) -> None:
        """Append texts that are missing, (texts, columns); `write=False` leaves the file to another process."""
        digests = [_digest(text) for text in texts]
        if self._folder is not None and write:
            tensors = {
                "texts": np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, _DIGEST),
                "embeddings": np.ascontiguousarray(embeddings),
            }
            replace_file(self._folder / f"{self._files:06}.safetensors", lambda part: save_file(tensors, part))
        self._append(digests, embeddings)

    def rows(self, texts: Iterable[str]) -> list[int]:
        """Where the embeddings of texts are; a KeyError for a text that has none."""
        return [self._rows[_digest(text)] for text in texts]

    def take(self, rows: Sequence[int], columns: slice) -> NDArray[np.floating]:
        """Some columns of some embeddings, (rows, columns)."""
        if len(self._chunks) != 1:
            self._chunks = [np.concatenate(self._chunks)]
        of_columns: NDArray[np.floating] = self._chunks[0][:, columns][rows]
        return of_columns

    def _append(self, digests: Sequence[bytes], embeddings: NDArray[np.floating]) -> None:
        # Rows, not texts: two runs at once may each have written the same text.
        start = sum(map(len, self._chunks))
        self._rows.update({digest: row for row, digest in enumerate(digests, start)})
        self._chunks.append(embeddings)
        self._files += 1


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest()


def _longest_first(texts: Iterable[str]) -> list[str]:
    """Texts of like length together, so that little is padding; in one order for all, whatever they are asked in."""
    return sorted(texts, key=lambda text: (-len(text), text))
