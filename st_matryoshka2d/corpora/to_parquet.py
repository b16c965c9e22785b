"""Write the embeddings of a corpus to Parquet shards, so that a killed run can continue."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from st_matryoshka2d.corpora.sizes_encoder import SizesEncoder
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.atomic import check_writable_folder
from st_matryoshka2d.files.parquet import write_parquet
from st_matryoshka2d.sizes import Size, positive_int
from st_matryoshka2d.texts import rows_of, strings

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

_ABOUT = b"st_matryoshka2d.encode_to_parquet"

# Keywords of `encode` that may change when a run continues: they change embeddings only by
# rounding.
_FREE = {"batch_size", "show_progress_bar"}


def encode_to_parquet(
    model: SentenceTransformer | str | os.PathLike[str],
    texts: Iterable[str] | Dataset | IterableDataset,
    folder: str | os.PathLike[str],
    sizes: Iterable[Size | str],
    *,
    text: str = "text",
    columns: Sequence[str] | None = None,
    shard_size: int = 10_000,
    normalize_embeddings: bool = False,
    device: str | None = None,
    show_progress_bar: bool = True,
    **kwargs: Any,
) -> list[Path]:
    """Embed a corpus at many sizes into Parquet files. Call it again to continue a killed run.

    Shards are read, embedded and written one after the other, so memory does not grow with the
    corpus, and a killed run loses only the shard it was working on. The next call with the same
    arguments compares the texts of the finished shards, embeds the rest, and ends with the same
    bytes. Only one call at a time may write to a folder.

    Args:
        model: A `SentenceTransformer`, a folder or a Hub name.
        texts: A list, a column of NumPy, pandas, pyarrow or `datasets`, or a generator of texts; or
            a `Dataset`, streamed or not, all of whose columns are kept. They must come in the same
            order each time.
        folder: Where to write `shard-000000.parquet` and so on. It is created if it does not exist.
        sizes: Sizes, as `Size` or as text such as `"6L-128d"`.
        text: Name of the column that holds the texts, in a data set and in the files.
        columns: As for `SizesEncoder`. Each new column holds lists of float32 of fixed length.
        shard_size: Texts in a file. The embeddings of one shard are in memory, at full width for
            each depth.
        normalize_embeddings: As for `SizesEncoder`.
        device: Such as `"cuda"`; None for the best device, or the device of the model.
        show_progress_bar: Show a progress bar over the texts, including those of finished shards.
        **kwargs: Keywords of `SentenceTransformer.encode`: `batch_size`, `prompt_name`, ... A run
            may continue with another `batch_size`, and on another device.

    Returns:
        The files, in the order of the texts. `load_dataset("parquet", data_dir=folder)` of
        `datasets` reads them.

    Raises:
        TypeError: The texts are a table of another kind or one string, or a row is not a string.
        ValueError: There are no texts, the folder holds embeddings of other weights, sizes, texts
            or settings, the model is trained meanwhile, or `SizesEncoder` refuses an argument.
        OSError: A file cannot be read or written.

    Example:
        >>> sizes = ["2L-32d", "6L-384d"]
        >>> files = encode_to_parquet(model, texts, "embeddings", sizes, show_progress_bar=False)
        >>> files[0].name
        'shard-000000.parquet'
        >>> import pandas as pd
        >>> pd.read_parquet("embeddings").columns.tolist()
        ['text', '2L-32d', '6L-384d']
    """
    shard_size = positive_int(shard_size, "shard_size")
    tables = _tables(texts, text, shard_size)
    place = Path(folder)
    check_writable_folder(place)
    for part in place.glob(".*.part.parquet"):  # of a killed run
        part.unlink(missing_ok=True)
    unit = normalize_embeddings
    encoder = SizesEncoder(model, sizes, text=text, columns=columns, normalize_embeddings=unit, device=device, **kwargs)
    about = _about(encoder, shard_size)
    for present in _shards(place)[:1]:
        _require_same(present, about)  # before anything is embedded
    total = len(texts) if isinstance(texts, Sized) else None
    shards: list[Path] = []
    with tqdm(desc="Texts", unit=" texts", total=total, disable=not show_progress_bar) as bar:
        try:
            for table in tables:
                shards.append(_written(place / f"shard-{len(shards):06d}.parquet", table, encoder, about))
                bar.update(len(table))
        except (TypeError, ValueError) as error:
            error.add_note(f"The shard starts at row {len(shards) * shard_size}.")
            raise
    if not shards:
        raise UsageError("There is no text to embed.")
    if more := sorted({*_shards(place)} - {*shards}):
        raise UsageError(f"The texts end before {more[0]}: it belongs to a run with more texts. Choose another folder.")
    return shards


def _written(path: Path, table: pa.Table, encoder: SizesEncoder, about: Mapping[str, Any]) -> Path:
    """Write a shard if it is missing; refuse one of other texts."""
    of_shard = {**about, "texts": _digest(table)}
    if path.exists():
        _require_same(path, of_shard)
        return path
    wide = encoder(table)
    if _revision(about["model"]) != encoder.revision:
        raise UsageError("The model was trained or changed during the run. Encode first, or pass a copy of it.")
    write_parquet(path, wide, {**(wide.schema.metadata or {}), _ABOUT: json.dumps(of_shard)})
    return path


def _tables(texts: Any, column: str, rows: int) -> Iterator[pa.Table]:
    """The corpus as one table for each shard, read when it is needed."""
    if hasattr(texts, "with_format") and not isinstance(texts, Mapping):  # a split of `datasets`
        return iter(texts.with_format("arrow").iter(batch_size=rows))
    try:
        source = rows_of(texts)
    except TypeError as error:
        error.add_note("To keep the other columns of a table, pass a Dataset: Dataset.from_pandas(frame), or a split.")
        raise
    chunks = iter(lambda: list(islice(source, rows)), [])
    return (pa.table({column: strings(chunk, column)}) for chunk in chunks)


def _shards(place: Path) -> list[Path]:
    """Every Parquet file of a folder, because readers of the folder read them all."""
    return sorted(place.glob("[!.]*.parquet"))


def _about(encoder: SizesEncoder, shard_size: int) -> dict[str, Any]:
    """What must be the same to continue a run, named as an error names it."""
    return {
        "model": f"{encoder.model_name} {encoder.revision}",
        "sizes": [str(size) for size in encoder.columns.values()],
        "columns": list(encoder.columns),
        "text column": encoder.text,
        "shard size": shard_size,
        "normalized": encoder.normalize_embeddings,
        "keywords": {name: repr(value) for name, value in sorted(encoder.kwargs.items()) if name not in _FREE},
    }


def _require_same(path: Path, wanted: Mapping[str, Any]) -> None:
    """Refuse to continue from a shard that this run would not have written."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise OSError(f"{path} cannot be read: {error}. Delete it to have it written again.") from error
    if _ABOUT not in metadata:
        raise UsageError(f"{path} was not written by encode_to_parquet. Choose an empty folder.")
    there = json.loads(metadata[_ABOUT])
    for name, value in wanted.items():
        if name == "model" and _revision(there.get(name)) == _revision(value):
            continue  # it may have been moved to a folder of another name
        if there.get(name) != value:
            values = "" if name == "texts" else f": {there.get(name)} there, {value} now"
            raise UsageError(
                f"{path} was written with other {name}{values}. Call with the same arguments, and a model that was "
                "not trained since, to continue; or choose another folder to start again."
            )


def _revision(model: object) -> str:
    """The digest behind the name of a model."""
    return str(model).rpartition(" ")[2]


def _digest(table: pa.Table) -> str:
    """A digest of the rows of a shard, independent of how they were read in chunks."""
    sink = pa.BufferOutputStream()
    plain = table.replace_schema_metadata(None).combine_chunks()
    with pa.ipc.new_stream(sink, plain.schema) as stream:
        stream.write_table(plain)
    return hashlib.sha256(sink.getvalue()).hexdigest()
