"""Embeddings of a task's texts at several layers; each text goes through the model once."""

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

from st_matryoshka2d._hosts.sentence_transformers import SortedByTokens
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.launch import Processes
from st_matryoshka2d.files.atomic import replace_file
from st_matryoshka2d.model.identity import model_name, model_revision
from st_matryoshka2d.model.sides import DOCUMENT, QUERY, sides_of, with_modules

# texts that a process embeds between two writes to disk, or two exchanges with other processes
_CHUNK = 2048
_BATCHES_PER_STEP = 8  # of the progress bar
_DIGEST = 16  # bytes
_ALONE = Processes()


def _nothing() -> None: ...


class Embeddings:
    """The embeddings of a task's texts at several layers, each text through the model once per prompt.

    mteb's own wrapper chooses the prompt and the method. Processes must request their shared texts
    in the same order.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        depths: Iterable[int],
        *,
        document_depths: Iterable[int] | None = None,
        processes: Processes = _ALONE,
        show_progress_bar: bool = False,
        after_encoding: Callable[[], object] = _nothing,
    ) -> None:
        self.similarity = str(SimilarityFunction(model.similarity_fn_name).value)
        self.processes = processes
        self.show_progress_bar = show_progress_bar
        self.after_encoding = after_encoding
        self.folder: Path | None = None
        self._memos: dict[PromptType | None, Memo] = {}
        self._depths = tuple(sorted({*depths}))
        # Only queries need the other depths, and a corpus is long.
        self._document_depths = self._depths if document_depths is None else tuple(sorted({*document_depths}))
        self._encoders: dict[tuple[int, ...], Any] = {
            wanted: SentenceTransformerEncoderWrapper(encoder)
            for wanted, encoder in _encoders(model, self._depths, self._document_depths).items()
        }
        identity = {"name": model_name(model), "revision": model_revision(model)}
        self.meta: ModelMeta = self._encoders[self._depths].mteb_model_meta.model_copy(update=identity)

    def __getstate__(self) -> dict[str, Any]:
        """State for another process: the embeddings, without the model."""
        return {**self.__dict__, "_encoders": {}, "after_encoding": _nothing}

    def alone(self) -> Embeddings:
        """Copy without the other processes, for work that is not shared with them."""
        single = copy.copy(self)
        # copying drops the model, as pickling does
        single._encoders, single.processes = self._encoders, _ALONE
        return single

    def begin(self, folder: Path | None) -> None:
        """Start a new task; the folder caches its embeddings."""
        files = sorted(str(path.relative_to(folder)) for path in folder.glob("texts-*/[0-9]*")) if folder else []
        if any(others != files for others in self.processes.everyones(files)):
            raise UsageError(f"The processes see different files in {folder}; `cache` must be a shared folder.")
        self.folder = folder
        self._memos.clear()

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
            self._fill(memo, memo.missing(texts), prompt_type=prompt_type, **kwargs)
            rows = memo.rows(texts)
        full = memo.width // len(self._depths)
        starts = {depth: self._depths.index(depth) * full for depth in (self._depths if depths is None else depths)}
        return {depth: torch.from_numpy(memo.take(rows, slice(start, start + full))) for depth, start in starts.items()}

    def of_documents(self, texts: Sequence[str], bar: tqdm[Any], **kwargs: Any) -> dict[int, Tensor]:
        """Return embeddings (texts, full dim) of a chunk of a corpus by document layer; they are not cached."""
        depths, once = self._document_depths, _longest_first(set(texts))
        at = {text: row for row, text in enumerate(once)}
        rows = [at[text] for text in texts]
        embeddings = self._encode(once, depths, bar, prompt_type=PromptType.document, **kwargs)
        by_depth = embeddings.reshape(len(once), len(depths), -1)
        return {depth: torch.from_numpy(by_depth[rows, place]) for place, depth in enumerate(depths)}

    def _fill(self, memo: Memo, missing: list[str], **kwargs: Any) -> None:
        """Encode the missing texts chunk by chunk; each process encodes a share."""
        rank, count = self.processes.rank, self.processes.count
        missing = _longest_first(missing)
        with tqdm(total=len(missing), desc="Texts", leave=False, disable=not self.show_progress_bar) as bar:
            for start in range(0, len(missing), _CHUNK * count):
                shares = [missing[start : start + _CHUNK * count][one::count] for one in range(count)]
                own = shares[rank], self._encode(shares[rank], self._depths, bar, **kwargs) if shares[rank] else None
                for texts, embeddings in self.processes.everyones(own):
                    if texts:
                        memo.add(texts, embeddings, write=rank == 0)
                bar.update(sum(map(len, shares)) - len(shares[rank]))
        self.after_encoding()

    def _encode(self, texts: list[str], depths: tuple[int, ...], bar: tqdm[Any], **kwargs: Any) -> NDArray[np.floating]:
        """Encode a few batches at a time, so that the progress bar moves."""
        if not self._encoders:
            raise RuntimeError(f"{kwargs['task_metadata'].name} requested other texts for one size than for another.")
        batch_size = kwargs.get("batch_size", 32)
        parts = []
        for few in Dataset.from_dict({"text": texts}).iter(_BATCHES_PER_STEP * batch_size):
            loader = DataLoader(Dataset.from_dict(few), batch_size=batch_size)
            parts.append(np.asarray(self._encoders[depths].encode(loader, **kwargs)))
            if (broken := ~np.isfinite(parts[-1]).all(axis=1)).any():
                text = few["text"][int(np.argmax(broken))][:80]
                raise UsageError(f"The model's embedding of {text!r} is not finite; no score could be trusted.")
            bar.update(len(parts[-1]))
        return np.concatenate(parts)


def _encoders(
    model: SentenceTransformer, depths: tuple[int, ...], document_depths: tuple[int, ...]
) -> dict[tuple[int, ...], SentenceTransformer]:
    """Return the model that embeds at each of these groups of depths, in full width."""
    if not (sides := sides_of(model)):
        return {wanted: EveryLayer.of(model, wanted) for wanted in {depths, document_depths}}
    wide = {name: with_modules(side, dict(side.named_children()), SortedByTokens) for name, side in sides.items()}
    return {depths: wide[QUERY], document_depths: wide[DOCUMENT]}


class Memo:
    """Embeddings by text, appended in chunks; with a folder, each chunk is also saved there atomically."""

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
                raise UsageError(f"{path} cannot be read. Delete it to have its texts embedded again. {error}") from error

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self._chunks[0].shape[1])

    def missing(self, texts: Iterable[str]) -> list[str]:
        """List the texts that have no embedding yet, without repetitions."""
        return [text for text in dict.fromkeys(texts) if _digest(text) not in self._rows]

    def add(self, texts: Sequence[str], embeddings: NDArray[np.floating], *, write: bool = True) -> None:
        """Append embeddings (texts, columns); with `write=False`, another process writes the file."""
        digests = [_digest(text) for text in texts]
        if self._folder is not None and write:
            texts_as_bytes = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, _DIGEST)
            tensors = {"texts": texts_as_bytes, "embeddings": np.ascontiguousarray(embeddings)}
            replace_file(self._folder / f"{self._files:06}.safetensors", lambda part: save_file(tensors, part))
        self._append(digests, embeddings)

    def rows(self, texts: Iterable[str]) -> list[int]:
        """Look up the rows of texts; raise a KeyError if one has no embedding."""
        return [self._rows[_digest(text)] for text in texts]

    def take(self, rows: Sequence[int], columns: slice) -> NDArray[np.floating]:
        """Select rows and columns of the embeddings."""
        if len(self._chunks) != 1:
            self._chunks = [np.concatenate(self._chunks)]
        of_columns: NDArray[np.floating] = self._chunks[0][:, columns][rows]
        return of_columns

    def _append(self, digests: Sequence[bytes], embeddings: NDArray[np.floating]) -> None:
        # A text may be in several files, because two runs may write at the same time.
        start = sum(map(len, self._chunks))
        self._rows.update({digest: row for row, digest in enumerate(digests, start)})
        self._chunks.append(embeddings)
        self._files += 1


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest()


def _longest_first(texts: Iterable[str]) -> list[str]:
    """Sort by length to avoid padding, then by text, so that batches do not depend on the order of the input."""
    return sorted(texts, key=lambda text: (-len(text), text))
