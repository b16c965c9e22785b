"""Add embeddings to batches of columns, for engines that spread a corpus over many workers."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import get_device_name

from st_matryoshka2d.encoding.encode_sizes import EveryLayer, encode_sizes
from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.hub.load import load
from st_matryoshka2d.model.identity import model_name, model_revision
from st_matryoshka2d.sizes import Size
from st_matryoshka2d.texts import strings

# Tokenizers are not safe to share between threads, and a model should be loaded once.
_ONE_AT_A_TIME = RLock()


class SizesEncoder:
    """Embed the texts of a batch at many sizes: it returns the batch with a column for each size.

    One object fits the engines that spread a corpus over workers. A batch may be

    - a dict of columns, as from Ray Data's `map_batches` and `datasets`' `map(batched=True)`;
      embeddings are arrays (texts, dim);
    - a `pandas.DataFrame`, or an iterator over these, as from Spark's `mapInPandas`; embeddings
      are arrays (dim,) in cells;
    - a `pyarrow.Table` or `RecordBatch`; embeddings are lists of fixed length.

    `encode` takes a column alone, for Spark's `predict_batch_udf` and for Daft. Embeddings are
    those of `encode_sizes`: each text goes through the model once for all sizes.

    The model is loaded when the encoder is created, so that mistakes show early, and once in each
    process that receives a pickled encoder. One made from a folder or a Hub name carries the name
    alone: every worker must be able to read it, and refuses other weights. One made from a model
    carries a copy of it as it is pickled, and in this process follows the model through training.

    Args:
        model: A `SentenceTransformer`, a folder or a Hub name. If `load` needs keywords, load the
            model first and pass it.
        sizes: Sizes, as `Size` or as text such as `"6L-128d"`.
        text: Name of the column that holds the texts.
        columns: Names of the new columns, one for each size. The default is the size, such as
            `"6L-128d"`.
        normalize_embeddings: Scale embeddings to unit length, after the dims are cut.
        device: Where each worker computes, such as `"cuda"`; None for its best device. In this
            process, a model in memory stays where it is.
        **kwargs: Keywords of `SentenceTransformer.encode`: `batch_size`, `prompt_name`, ...

    Attributes:
        text: As given.
        columns: The size of each new column, by name.
        revision: A digest of everything that affects the model's embeddings, as it is now; in a
            worker, as it was when the encoder was pickled.

    Raises:
        ValueError: A size is not within the model, column names are wrong, a keyword cannot be
            taken, or a worker finds another model.
        FileNotFoundError: There is no such folder or model.

    Example:
        >>> sizes = ["2L-32d", "6L-384d"]
        >>> encoder = SizesEncoder(model, sizes, text="line", columns=["small", "whole"])
        >>> batch = encoder({"id": [1, 2], "line": ["a text", "another"]})
        >>> list(batch), batch["small"].shape
        (['id', 'line', 'small', 'whole'], (2, 32))
    """

    def __init__(
        self,
        model: SentenceTransformer | str | os.PathLike[str],
        sizes: Iterable[Size | str],
        *,
        text: str = "text",
        columns: Sequence[str] | None = None,
        normalize_embeddings: bool = False,
        device: str | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(device, list | tuple) or "chunk_size" in kwargs:
            raise UsageError("A SizesEncoder works in one process on one device: start more workers in the engine.")
        whole = model if isinstance(model, SentenceTransformer) else load(os.fspath(model), device=device)
        self.kwargs = {"show_progress_bar": False, **kwargs}
        # A wrong size or keyword fails here, not in a worker.
        wanted = [*encode_sizes(whole, ["a"], sizes, device=device, **self.kwargs)]
        names = [str(size) for size in wanted] if columns is None else [columns] if isinstance(columns, str) else [*columns]
        if len(names) != len(wanted) or len({text, *names}) <= len(names):
            raise UsageError(
                f"columns must be {len(wanted)} different names, one for each size and none of them "
                f"{text!r}, which holds the texts; got {names}."
            )
        self.text, self.columns = text, dict(zip(names, wanted, strict=True))
        self.normalize_embeddings, self.device = normalize_embeddings, device
        self.model_name, self._depths = model_name(whole), frozenset(size.num_layers for size in wanted)
        self._source: SentenceTransformer | _Sent = whole
        self._every: EveryLayer | None = None
        if not isinstance(model, SentenceTransformer):
            # workers start in another folder
            place = str(Path(model).absolute()) if Path(model).exists() else os.fspath(model)
            self._source = _Sent(model_revision(whole), self._depths, device, place)
            self._every = EveryLayer.of(whole, self._depths)

    @property
    def revision(self) -> str:
        """A digest of everything that affects the model's embeddings."""
        return self._source.revision if isinstance(self._source, _Sent) else model_revision(self._source)

    def __call__(self, batch: Any) -> Any:
        """Return a batch, of any kind that the class describes, with a new column for each size.

        Args:
            batch: A batch, which does not change, or an iterator over batches.

        Raises:
            TypeError: The batch is none of these, or a row of the text column is not a string.
            ValueError: The text column is missing, a new column already exists, or a text has half
                of a surrogate pair.
        """
        if isinstance(batch, Iterator):
            return map(self, batch)
        is_arrow, is_frame = isinstance(batch, pa.Table | pa.RecordBatch), hasattr(batch, "assign")
        if not (is_arrow or is_frame or isinstance(batch, Mapping)):
            raise UsageTypeError(
                "A batch must be a dict of columns, a pandas DataFrame, a pyarrow Table or RecordBatch, or an "
                f"iterator over these, got a {type(batch).__name__}."
            )
        names = batch.schema.names if is_arrow else list(batch)
        if self.text not in names:
            raise UsageError(f"There is no column {self.text!r} to read texts from, only {names}. Name it: text='...'.")
        if taken := sorted({*self.columns} & {*names}):
            raise UsageError(f"There already is a column {taken[0]!r}. Choose other names: columns=[...].")
        by_column = self.encode(batch[self.text])
        if is_arrow:
            for name, rows in by_column.items():
                batch = batch.append_column(name, pa.FixedSizeListArray.from_arrays(rows.reshape(-1), rows.shape[1]))
            return batch
        if is_frame:
            return batch.assign(**{name: list(rows) for name, rows in by_column.items()})
        return {**batch, **by_column}

    def encode(self, texts: Any) -> dict[str, NDArray[np.float32]]:
        """Embed a column of texts: for each new column an array (texts, dim).

        Args:
            texts: A list, or an array or a series of NumPy, pandas, pyarrow or Daft.

        Raises:
            TypeError: A row is not a string.
            ValueError: A text has half of a surrogate pair.

        Example:
            >>> SizesEncoder(model, ["2L-32d"]).encode(["a text", "another"])["2L-32d"].shape
            (2, 32)
        """
        rows = strings(texts, self.text)
        with _ONE_AT_A_TIME:
            every, unit = self._up_to_date(), self.normalize_embeddings
            by_size = every.at_sizes(rows, self.columns.values(), unit, device=self.device, **self.kwargs)
        return {name: by_size[size] for name, size in self.columns.items()}

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled for another process, which may have no GPU."""
        source = self._source
        model = source.model if isinstance(source, _Sent) else source
        if model is not None:
            # A copy, because a process pool would move the weights into memory that it shares with
            # the worker.
            source = _Sent(self.revision, self._depths, self.device, model=copy.deepcopy(model).cpu())
        return {**vars(self), "_source": source, "_every": None}

    def _up_to_date(self) -> EveryLayer:
        """The model at all depths, as it is now."""
        if not isinstance(self._source, _Sent):
            # it shares the weights, but not the tokenizer and the settings
            return EveryLayer.of(self._source, self._depths)
        if self._every is None:
            self._every = _in_this_process(self._source)
        return self._every


@dataclass(frozen=True)
class _Sent:
    """What a worker makes its model of: the weights, or the place where it finds them."""

    revision: str
    depths: frozenset[int]
    device: str | None
    path: str = ""
    model: SentenceTransformer | None = field(default=None, compare=False)


@lru_cache(maxsize=4)
def _in_this_process(sent: _Sent) -> EveryLayer:
    """Make the model once for all equal encoders of a process: an engine may unpickle one for each of its tasks."""
    model = load(sent.path, device=sent.device) if sent.model is None else sent.model
    if sent.model is None and model_revision(model) != sent.revision:
        raise UsageError(
            f"{sent.path!r} holds another model here than where the SizesEncoder was made, or library versions "
            "differ. Give all machines the same, or make the encoder from a model in memory, which is sent to them."
        )
    return EveryLayer.of(model.to(sent.device or get_device_name()), sent.depths)
